"""MegaFBD's *linears* mode on two real devices, one forward and one backward, for bench.fbd.

Each way to train is a launch of torchrun's, whose ranks write down what they saw.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch

from bench._model import COMMON, PRESETS
from bench.split_cost import KINDS, WARM_UP_ROUNDS, SplitCost
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.disaggregation.step import PlannedStep
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.trace.values import Progress
from megatronapp.trainer import arguments
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.figures import model_of
from megatronapp.trainer.plugins.fbd.linears import linears_of
from megatronapp.trainer.plugins.fbd.plan import Plan
from megatronapp.trainer.plugins.fbd.roles import Role

FOLDER = "MEGATRONAPP_BENCH_FOLDER"
WARM_UP_STEPS = 3
PROFILE_ROUNDS, PROFILE_MICROBATCHES = 4, 8
LIMIT_SECONDS = 240
LINK_BYTES, LINK_COPIES = 256 << 20, 10
LARGE = 1e15
LINK = "link"
NONE, FULL, LINEARS, REPLICAS = "no recompute", "full recompute", "linears", "DP 2, no recompute"
PROFILE = "profile"
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What to run. `flags` change the preset's."""

    preset: str
    microbatches: int
    batch: int
    steps: int
    flags: tuple[str, ...] = ()

    @property
    def model(self) -> list[str]:
        sizes = f"--micro-batch-size {self.batch} --global-batch-size {self.batch * self.microbatches}"
        return [*f"{PRESETS[self.preset]} {COMMON} {sizes} --log-interval 1".split(), *self.flags]

    def ways(self) -> dict[str, tuple[int, str]]:
        """Ranks, and the flags beside the model's."""
        return {
            NONE: (1, ""),
            FULL: (1, RECOMPUTE),
            LINEARS: (2, f"--forward-backward-disaggregating --fbd-mode {Mode.LINEARS}"),
            REPLICAS: (2, ""),
        }


@dataclass
class Record:
    """Of one rank; in seconds and bytes."""

    role: str = ""
    begins: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    times: dict[str, float] = field(default_factory=dict)

    @property
    def step_seconds(self) -> float:
        begins = self.begins[WARM_UP_STEPS:]
        return median(after - before for before, after in pairwise(begins))


class Watch(Plugin):
    """When steps begin, what they lose, and the most memory."""

    name = "watch"

    def __init__(self, context: PluginContext) -> None:
        self._device, self._rank = context.device, context.identity.rank
        self._seen = Record(role=context.placement.role)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls(context)

    def step_begin(self, step: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._seen.begins.append(time.perf_counter())

    def step_end(self, step: int, progress: Progress | None) -> None:
        if progress is not None and progress.loss is not None:
            self._seen.losses.append(progress.loss)

    def training_end(self) -> None:
        if self._device.type == "cuda":
            self._seen.peak_bytes = torch.cuda.max_memory_allocated()
        write(self._rank, self._seen)


class Profile(SplitCost):
    """F, dgrad and W of a microbatch, and of F what the linears take."""

    def models(self, chunks: Any) -> None:
        super().models(chunks)
        for number, linear in enumerate(linears_of(chunks[0])):
            begins: list[Any] = []
            linear.module.register_forward_pre_hook(lambda *_, begins=begins: begins.append(self._clock.now()))
            linear.module.register_forward_hook(
                lambda *_, begins=begins, name=f"linear {number}": self._moments.append(
                    (name, begins.pop(), self._clock.now())
                )
            )

    def training_end(self) -> None:
        times = {name: median(seconds) for name, seconds in self.seconds.items()}
        write(0, Record(times=times | {LINK: link_bytes_per_second()}))


def link_bytes_per_second() -> float:
    """From one GPU to the next; 0 where there is none."""
    if torch.cuda.device_count() < 2:
        return 0.0
    source, target = (torch.empty(LINK_BYTES, dtype=torch.uint8, device=f"cuda:{number}") for number in range(2))
    target.copy_(source)
    torch.cuda.synchronize(0)
    began = time.perf_counter()
    for _ in range(LINK_COPIES):
        target.copy_(source)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return LINK_BYTES * LINK_COPIES / (time.perf_counter() - began)


def write(rank: int, seen: Record) -> None:
    (Path(os.environ[FOLDER]) / f"{rank}.json").write_text(json.dumps(vars(seen)))


def rows(devices: Devices) -> Iterator[dict[str, Any]]:
    """One for each way to train, then what they come to."""
    seen: dict[str, list[Record]] = {}
    times = launched(devices, 1, "", PROFILE)[0].times
    for name, (ranks, flags) in devices.ways().items():
        seen[name] = launched(devices, ranks, flags, name)
        yield described(name, seen[name])
    yield compared(devices, times, {name: trained(ranks).step_seconds for name, ranks in seen.items()})


def trained(ranks: list[Record]) -> Record:
    """A rank that trains."""
    return next(each for each in ranks if each.role != Role.FORWARD)


def described(name: str, ranks: list[Record]) -> dict[str, Any]:
    one = trained(ranks)
    peaks = {each.role or "trained": round(each.peak_bytes / 2**30, 1) for each in ranks}
    return {
        "what": f"{name}, {len(ranks)} device{'s' * (len(ranks) > 1)}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "step_ms": round(one.step_seconds * 1e3, 1),
        "first_and_last_loss": [one.losses[0], one.losses[-1]] if one.losses else [],
        "peak_gib": peaks,
    }


def compared(devices: Devices, times: dict[str, float], seconds: dict[str, float]) -> dict[str, Any]:
    share = sum(each for name, each in times.items() if name.startswith("linear ")) / times["F"]
    step = planned(devices, times, share)
    passes = devices.microbatches * sum(times[name] for name in "FBW")
    predicted = step.step_ns / 1e9 + max(0.0, seconds[NONE] - passes)
    error = seconds[LINEARS] / predicted - 1
    over_none, over_full = seconds[NONE] / seconds[LINEARS], seconds[FULL] / seconds[LINEARS]
    model = " ".join((devices.preset, *devices.flags))
    return {
        "what": f"linears on 1 + 1 devices, {model}, {devices.microbatches} microbatches of {devices.batch}",
        "forward_dgrad_wgrad_ms": [round(times[name] * 1e3, 2) for name in "FBW"],
        "linears_share": round(share, 3),
        "link_gigabytes_per_second": round(times[LINK] / 1e9, 1),
        "paces_ms": [round(pace / 1e6, 2) for pace in step.paces],
        "gain_over_none": round(over_none, 3),
        "gain_over_none_must": 1.15,
        "gain_over_full": round(over_full, 3),
        "gain_over_full_must": 1.4,
        "gain_of_dp_2_over_none": round(seconds[NONE] / seconds[REPLICAS], 3),
        "predicted_ms": round(predicted * 1e3, 1),
        "prediction_error_ratio": round(error, 4),
        "ok": over_none >= 1.15 and over_full >= 1.4 and abs(error) <= 0.1,
    }


def planned(devices: Devices, times: dict[str, float], linears_share: float) -> PlannedStep:
    """By the planner, from the times of one device."""
    config, args = arguments.parse(
        [*devices.model, *f"--train-iters 1 {devices.ways()[LINEARS][1]}".split()], (FbdPlugin,)
    )
    training = Training(
        layout=Layout(stages=1, microbatches=devices.microbatches), tensor=1, replicas=1, forward_ns=times["F"] * 1e9,
        dgrad_ns=times["B"] * 1e9, wgrad_ns=times["W"] * 1e9, memory_bytes=LARGE,
    )  # fmt: skip
    link = times[LINK] or LARGE
    beside = ForwardDevices(count=1, speed=1.0, memory_bytes=LARGE, bytes_per_second=link)
    mapping = Mapping(Mode.LINEARS, 1, 1, Plan.of(args, 2).slots)
    return PlannedStep(model_of(config), training, beside, mapping, linears_share)


def launched(devices: Devices, ranks: int, flags: str, name: str) -> list[Record]:
    """What the ranks saw. Raises SystemExit with the end of their output where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "bench._fbd_devices", name, *devices.model, *steps_of(devices, name).split(), *flags.split()]
        with (
            output.open("w") as stream,
            subprocess.Popen(
                command,
                env=os.environ | {FOLDER: folder},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as training,
        ):
            try:
                code: int | None = training.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(training.pid, signal.SIGKILL)
        if code != 0:
            said = "\n".join(output.read_text().splitlines()[-60:])
            raise SystemExit(f"{name}: {'no end in time' if code is None else f'exit code {code}'}\n{said}")
        return [Record(**json.loads((Path(folder) / f"{rank}.json").read_text())) for rank in range(ranks)]


def steps_of(devices: Devices, name: str) -> str:
    if name != PROFILE:
        return f"--train-iters {devices.steps + WARM_UP_STEPS + 1}"
    steps = len(KINDS) * (PROFILE_ROUNDS + WARM_UP_ROUNDS)
    return f"--train-iters {steps} --global-batch-size {devices.batch * PROFILE_MICROBATCHES}"


def main() -> int:
    """A rank."""
    from megatronapp.trainer.launch import run

    name, *flags = sys.argv[1:]
    plugins: dict[str, tuple[type[Plugin], ...]] = {PROFILE: (Profile,), LINEARS: (FbdPlugin, Watch)}
    run(flags, plugins=plugins.get(name, (Watch,)))
    return 0


if __name__ == "__main__":
    from megatronapp.trainer.rank_exit import RankExit

    RankExit().run(main)
