"""A training run of bench.fbd on real devices: its ranks, each on the device that it is given, and what they saw."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch

from bench._fbd_kernels import Kernels
from bench._fbd_lanes import OPTIMIZER, F, Lanes
from bench.split_cost import SplitCost
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.linears import linears_of
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.ports import free_port

FOLDER = "MEGATRONAPP_BENCH_FOLDER"
WARM_UP_STEPS, LANE_STEPS = 3, 2
"""First steps, and last ones, that the step's time is not of. Lanes are those of the last ones."""
LINK_BYTES, LINK_COPIES = 256 << 20, 10
LINK = "link"
PROFILE = "profile"
POLL_SECONDS = 0.1
OTHERS_SECONDS = 5.0
"""That ranks have to say why they fail, once one has failed."""
SAID_LINES = 30


class RunError(Exception):
    """A run that failed, with what its ranks said."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """`devices` is each rank's; two ranks may have the same one. `plugins` are names of PLUGINS."""

    name: str
    devices: tuple[int, ...]
    flags: tuple[str, ...]
    plugins: str


@dataclass
class Record:
    """Of one rank; in seconds and bytes."""

    role: str = ""
    stage: int = 0
    begins: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    times: dict[str, float] = field(default_factory=dict)
    lanes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(device, host) of a step."""
    kernels: list[str] = field(default_factory=list)
    """Lines of a table, where they were asked for."""

    @property
    def step_seconds(self) -> float:
        begins = self.begins[WARM_UP_STEPS : 1 - LANE_STEPS]
        return median(after - before for before, after in pairwise(begins))


def iterations(steps: int) -> int:
    """Of a run whose step time is that of so many."""
    return WARM_UP_STEPS + steps + LANE_STEPS


class Watch(Plugin):
    """When steps begin, what they lose, the most memory, and what the last steps were spent on."""

    name = "watch"

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        self._device, self._rank = context.device, context.identity.rank
        self._forward = context.placement.role == Role.FORWARD
        self._seen = Record(role=context.placement.role, stage=context.placement.pipeline)
        self._lanes = Lanes(context.device)
        self._first_lane_step = args.train_iters - LANE_STEPS + 1

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls(args, context)

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        return self._lanes.timed(F, function) if self._forward else function

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        return self._lanes.timed(OPTIMIZER, step)

    def step_begin(self, step: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._lanes.on = step >= self._first_lane_step
        self._lanes.step_begin()
        self._seen.begins.append(time.perf_counter())

    def step_end(self, step: int, progress: Progress | None) -> None:
        if progress is not None and progress.loss is not None:
            self._seen.losses.append(progress.loss)

    def training_end(self) -> None:
        self._lanes.finish()
        self._seen.lanes = self._lanes.seconds()
        if self._device.type == "cuda":
            self._seen.peak_bytes = torch.cuda.max_memory_allocated()
        write(self._rank, self._seen)


class KernelWatch(Watch):
    """Also what the device runs in the last steps, which take longer while it is recorded."""

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._kernels = Kernels()
        self._lanes.mark = self._kernels.mark

    def step_begin(self, step: int) -> None:
        if step == self._first_lane_step:
            self._kernels.begin()
        super().step_begin(step)

    def training_end(self) -> None:
        self._kernels.end(LANE_STEPS)
        self._seen.kernels = self._kernels.lines
        super().training_end()


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


WATCHED, DISAGGREGATED, KERNELS = "watched", "disaggregated", "kernels"
PLUGINS: dict[str, tuple[type[Plugin], ...]] = {
    PROFILE: (Profile,),
    WATCHED: (Watch,),
    DISAGGREGATED: (FbdPlugin, Watch),
    KERNELS: (FbdPlugin, KernelWatch),
}


def link_bytes_per_second() -> float:
    """From this GPU to the next; 0 where there is none."""
    here = torch.cuda.current_device() if torch.cuda.is_available() else 0
    if torch.cuda.device_count() < here + 2:
        return 0.0
    devices = here, here + 1
    source, target = (torch.empty(LINK_BYTES, dtype=torch.uint8, device=f"cuda:{number}") for number in devices)
    target.copy_(source)
    torch.cuda.synchronize(here)
    began = time.perf_counter()
    for _ in range(LINK_COPIES):
        target.copy_(source)
    for number in devices:
        torch.cuda.synchronize(number)
    return LINK_BYTES * LINK_COPIES / (time.perf_counter() - began)


def write(rank: int, seen: Record) -> None:
    (Path(os.environ[FOLDER]) / f"{rank}.json").write_text(json.dumps(vars(seen)))


def played(run: Run, limit_seconds: float) -> list[Record]:
    """What the ranks saw. Raises RunError with the end of their output where one fails, or does not end in time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        ranks = [_rank(run, rank, port, folder) for rank in range(len(run.devices))]
        try:
            ended = _wait(ranks, time.monotonic() + limit_seconds)
        finally:
            for each in ranks:
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGKILL)
                each.wait()
        if not ended or any(each.returncode for each in ranks):
            raise RunError(f"{'exit code' if ended else 'no end in time;'} {_failures(ranks, folder)}")
        return [Record(**json.loads((folder / f"{rank}.json").read_text())) for rank in range(len(ranks))]


def _rank(run: Run, rank: int, port: int, folder: Path) -> subprocess.Popen[bytes]:
    """As torchrun would start it, but for the device."""
    size = str(len(run.devices))
    environment = {"RANK": str(rank), "LOCAL_RANK": str(run.devices[rank]), "WORLD_SIZE": size}
    environment |= {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMP_NUM_THREADS": "1", FOLDER: str(folder)}
    with (folder / f"{rank}.txt").open("w") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "bench._fbd_launch", run.plugins, *run.flags],
            env=os.environ | environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], until: float) -> bool:
    """Whether all have ended by then; after the first failure the others have only OTHERS_SECONDS."""
    failed = False
    while any(each.poll() is None for each in ranks):
        if not failed and any(each.poll() for each in ranks):
            failed, until = True, min(until, time.monotonic() + OTHERS_SECONDS)
        if time.monotonic() >= until:
            return failed
        time.sleep(POLL_SECONDS)
    return True


def _failures(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    """Exit codes, and of each rank that did not end well the last lines."""
    parts = [str([each.returncode for each in ranks])]
    for number, each in enumerate(ranks):
        if each.returncode:
            lines = (folder / f"{number}.txt").read_text(errors="replace").splitlines()
            parts += [f"rank {number}:", *lines[-SAID_LINES:]]
    return "\n".join(parts)


def main() -> int:
    """A rank."""
    from megatronapp.trainer.launch import run

    name, *flags = sys.argv[1:]
    run(flags, plugins=PLUGINS[name])
    return 0


if __name__ == "__main__":
    from megatronapp.trainer.rank_exit import RankExit

    RankExit().run(main)
