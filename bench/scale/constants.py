"""What a constant of the detector is worth: verdicts on the same simulated jobs, on seeds for tuning, with other values
in its place. A constant that may be halved or doubled without a change rests on nothing finer than that.

python -m bench.scale.constants [--trials 6] [--ranks 64] [--only AGREE …]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.scale import report
from bench.scale.report import Line
from bench.scale.scenarios import HEALTHY_STEPS, Trial
from bench.scale.seeds import seeds
from bench.scale.suites import size_of
from bench.scale.trials import run
from megatronapp.detector import attribution
from megatronapp.detector.rules import slow_gpu
from megatronapp.detector.signals import outrun


@dataclass(frozen=True)
class Constant:
    name: str
    modules: tuple[ModuleType, ...]
    """Where its name stands for it."""
    values: tuple[float, ...]
    faults: tuple[str, ...]
    """Those on which it bears."""
    models: tuple[str, ...] = ()
    """Of healthy jobs."""


CONSTANTS = (
    Constant(
        "AGREE", (outrun, slow_gpu), (0.1, 0.2, 0.3, 0.45, 0.6), ("slow", "creeping", "intermittent", "node"),
        ("drift", "bursts"),
    ),
    Constant("FAR_MORE", (attribution,), (1.0, 1.5, 2.0, 3.0, 4.0), ("two-kinds", "host", "data", "link")),
    Constant("MEMORY_BOUND", (slow_gpu,), (0.06, 0.12, 0.25, 0.5, 0.75), ("memory", "slow", "two-kinds")),
)  # fmt: skip


@contextmanager
def standing(constant: Constant, value: float) -> Iterator[None]:
    """With another value in the constant's place."""
    before = getattr(constant.modules[0], constant.name)
    try:
        for module in constant.modules:
            setattr(module, constant.name, value)
        yield
    finally:
        for module in constant.modules:
            setattr(module, constant.name, before)


def trials(constant: Constant, ranks: int, jobs: int) -> Iterator[Trial]:
    for place, seed in enumerate(seeds(jobs)):
        seconds = (4.0, 15.0)[place % 2]
        for fault in constant.faults:
            yield Trial("faults", fault, ranks, seconds, seed, 0, size=size_of(fault))
        for model in constant.models:
            yield Trial("healthy", model, ranks, seconds, seed, HEALTHY_STEPS, model)


def judged(constant: Constant, value: float, ranks: int, jobs: int) -> Line:
    with standing(constant, value):
        return report.pooled(report.lines((trial, run(trial)) for trial in trials(constant, ranks, jobs)))


def row(constant: Constant, value: float, line: Line) -> str:
    now = " (now)" if value == getattr(constant.modules[0], constant.name) else ""
    steps, _ = line.to_the_page("steps")
    return (
        f"{constant.name:12} {value:5g}{now:6} {line.trials:4} jobs: found {line.found} of {len(line.detections)}, "
        f"right causes {line.right_causes}, median steps {steps:.0f}, wrong culprits {line.wrong_culprits}, "
        f"false pages {line.false_pages}, false openings {line.false_openings}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m bench.scale.constants", description=__doc__)
    known.add_argument("--trials", type=int, default=6, help="jobs of each fault and model")
    known.add_argument("--ranks", type=int, default=64)
    known.add_argument("--only", nargs="+", choices=[each.name for each in CONSTANTS])
    wanted = known.parse_args(argv)
    for constant in CONSTANTS:
        for value in constant.values if wanted.only is None or constant.name in wanted.only else ():
            print(row(constant, value, judged(constant, value, wanted.ranks, wanted.trials)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
