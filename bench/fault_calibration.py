"""How exact slow_compute is: injected over base work, asked and measured.

Work is CPU time of the training thread, or on a GPU time of the compute stream. One rank trains in one run. For each
size the fault acts in every second step. Two medians over those steps:

- injected: what the fault added over what the model's own passes took, in the same step;
- seen: the step against the mean of the two unslowed steps around it, so that a machine that gets slower or faster
  meanwhile does no harm. It also holds what the injected work does to the model's own: on a busy machine a longer step
  is interrupted more often and loses more of its caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import yaml

from megatronapp.core.scenario import Fault, FaultKind, Scenario
from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.faults import FaultsPlugin

ASKED_RATIOS = (1.05, 1.10, 1.20, 1.50)
WARM_UP_STEPS = 20
PAIRS = 120
CPU_MODEL = ["--num-layers=2", "--hidden-size=128", "--seq-length=64", "--micro-batch-size=2", "--global-batch-size=8"]
CUDA_MODEL = ["--num-layers=8", "--hidden-size=2048", "--seq-length=2048", "--micro-batch-size=1", "--bf16"]
CUDA_MODEL += ["--global-batch-size=4"]
COMMON = [
    "--num-attention-heads=4",
    "--lr=1e-4",
    "--mock-data",
    "--num-workers=0",
    "--eval-iters=0",
    "--log-interval=1000000",
]


class Meter(Plugin):
    """Compute time of forward and backward passes per step, in seconds: thread CPU time, on a GPU stream time."""

    seconds: ClassVar[dict[int, float]]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls(context.device)
        context.timers.listeners.append(plugin)
        return plugin

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def start(self, name: str) -> None:
        if name.endswith("-compute"):
            self._marks.append(self._mark())

    stop = start

    def step_begin(self, step: int) -> None:
        self._marks.clear()

    def step_end(self, step: int, progress: Progress | None) -> None:
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._on_cuda:
            torch.cuda.synchronize()
            self.seconds[step] = sum(begin.elapsed_time(end) for begin, end in pairs) / 1e3
        else:
            self.seconds[step] = sum(end - begin for begin, end in pairs)

    def _mark(self) -> Any:
        if not self._on_cuda:
            return time.thread_time()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class OuterMeter(Meter):
    """Sees the injected work."""

    name: ClassVar[str] = "outer"
    seconds: ClassVar[dict[int, float]] = {}


class InnerMeter(Meter):
    """Sees the model's own work alone."""

    name: ClassVar[str] = "inner"
    seconds: ClassVar[dict[int, float]] = {}


def first_step(index: int) -> int:
    """The first slow step of the index-th size; an unslowed one stands before it."""
    return WARM_UP_STEPS + 2 + index * (2 * PAIRS + 2)


def scenario() -> Scenario:
    return Scenario(
        faults=tuple(
            Fault(
                kind=FaultKind.SLOW_COMPUTE,
                ranks=(0,),
                from_step=first_step(index),
                to_step=first_step(index) + 2 * PAIRS - 1,
                every=2,
                effect_ratio=ratio,
            )
            for index, ratio in enumerate(ASKED_RATIOS)
        )
    )


def slow_steps(index: int) -> range:
    return range(first_step(index), first_step(index) + 2 * PAIRS, 2)


def injected(index: int) -> list[float]:
    """Injected over base work of each slow step of the index-th size."""
    return [OuterMeter.seconds[step] / InnerMeter.seconds[step] - 1 for step in slow_steps(index)]


def seen(index: int) -> list[float]:
    """By how much each slow step of the index-th size took more than its neighbours."""
    took = OuterMeter.seconds
    return [2 * took[step] / (took[step - 1] + took[step + 1]) - 1 for step in slow_steps(index)]


def run() -> list[dict[str, Any]]:
    steps = first_step(len(ASKED_RATIOS))
    model = CUDA_MODEL if torch.cuda.is_available() else CPU_MODEL
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(yaml.safe_dump(scenario().model_dump(mode="json", exclude_defaults=True)))
        flags = [*model, *COMMON, f"--train-iters={steps}", f"--fault-scenario={file}"]
        launch.run(flags, plugins=[OuterMeter, FaultsPlugin, InnerMeter])
    return [
        {
            "asked_percent": round((ratio - 1) * 100, 1),
            "injected_percent": round(statistics.median(injected(index)) * 100, 2),
            "seen_percent": round(statistics.median(seen(index)) * 100, 2),
            "steps": PAIRS,
        }
        for index, ratio in enumerate(ASKED_RATIOS)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line in place of the table")
    options = parser.parse_args(argv)
    rows = run()
    if options.json:
        print(json.dumps({"fault_calibration": rows}))
        return 0
    print(f"{'asked %':>8} {'injected %':>11} {'seen %':>8} {'steps':>6}")
    for row in rows:
        print("{asked_percent:>8} {injected_percent:>11} {seen_percent:>8} {steps:>6}".format(**row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
