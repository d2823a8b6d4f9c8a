"""Where tracing costs time on the GPU: kernels and the gaps between them, with the scan plug-in off and at base.

    torchrun --nproc-per-node 2 -m bench.trace_timeline --preset 1b-wide --use-distributed-optimizer

bench.trace_overhead says how much longer steps take; this says where. PyTorch's profiler records steps of both modes in
one run, and the result lists for each mode what a step spends in collectives' kernels, in other kernels and with no
kernel running, then the gaps that differ most, by the kernels before and after them. The profiler makes the host
slower, in all modes alike. Unknown flags go to the trainer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench._blocks import BLOCK, Blocks
from bench._model import COMMON, PRESETS

SHOWN_GAPS = 12
LONGEST_NAME = 48


class Kernel(NamedTuple):
    name: str
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """Milliseconds of some steps."""

    collectives_ms: float
    others_ms: float
    idle_ms: float
    gaps_ms: dict[tuple[str, str], float]
    """By the kernels before and after."""

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> Timeline:
        """Of the kernels of all streams; where several run at once the time is that of the one that began first."""
        spent = {True: 0.0, False: 0.0}
        gaps: dict[tuple[str, str], float] = defaultdict(float)
        before, until = "", float("-inf")
        for kernel in sorted(kernels, key=lambda each: each.begin_us):
            if before and kernel.begin_us > until:
                gaps[before, kernel.name] += (kernel.begin_us - until) / 1e3
            if kernel.end_us > until:
                spent[kernel.name.startswith("nccl")] += (kernel.end_us - max(kernel.begin_us, until)) / 1e3
                before, until = kernel.name, kernel.end_us
        return cls(spent[True], spent[False], sum(gaps.values()), dict(gaps))


def compare(usual: Timeline, other: Timeline, steps: int) -> dict[str, Any]:
    """What a step of `other` spends, and how much more than one of `usual`, in ms."""
    keys = usual.gaps_ms.keys() | other.gaps_ms.keys()
    more = {key: (other.gaps_ms.get(key, 0.0) - usual.gaps_ms.get(key, 0.0)) / steps for key in keys}
    largest = sorted(more, key=lambda key: -abs(more[key]))[:SHOWN_GAPS]
    totals = {
        name: [round(getattr(other, name) / steps, 3), round((getattr(other, name) - getattr(usual, name)) / steps, 3)]
        for name in ("collectives_ms", "others_ms", "idle_ms")
    }
    return {**totals, "gaps": [[*(name[:LONGEST_NAME] for name in key), round(more[key], 4)] for key in largest]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trace_timeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--rounds", type=int, default=4, help="of one block of each mode")
    parser.add_argument("--modes", nargs="+", choices=("control", "base", "full"), default=["control", "base", "full"])
    options, flags = parser.parse_known_args(argv)
    blocks = Blocks(modes=("off", *options.modes), settling=1)
    iterations = blocks.iterations(options.rounds * BLOCK)
    report = run([*PRESETS[options.preset].split(), *COMMON.split(), *flags, f"--train-iters={iterations}"], blocks)
    if report is not None:
        print(json.dumps(report, indent=1), flush=True)
    return 0


def run(flags: Sequence[str], blocks: Blocks) -> dict[str, Any] | None:
    """Train with the profiler on in each counted step. The report is the first rank's."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from megatronapp.core.trace.values import Progress
    from megatronapp.trainer.launch import run as train
    from megatronapp.trainer.plugins.base import PluginContext
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scan.flags import ScanSettings
    from megatronapp.trainer.plugins.scan.window import Window

    if not torch.cuda.is_available():
        raise SystemExit("bench.trace_timeline reads a GPU's timeline, and there is no GPU here")
    kernels: dict[str, list[list[Kernel]]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    ranks: list[int] = []

    class ProfiledScan(ScanPlugin):
        _mode = "off"
        _profile: Any = None
        _began = 0.0

        @classmethod
        def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
            ranks.append(context.identity.rank)
            folder = Path(tempfile.mkdtemp(prefix="trace-timeline-"))
            return cls(ScanSettings(Window(enabled=True, interval=1, continuous=1), folder, ""), context)

        def step_begin(self, step: int) -> None:
            mode, _, counted = blocks.mode_of(step)
            if not counted:
                self._collect()
            elif self._profile is None:
                torch.cuda.synchronize()
                self._profile = profile(activities=[ProfilerActivity.CUDA])
                self._profile.start()
                self._began = time.perf_counter()
            self._mode = mode
            if mode in ("off", "control"):
                self.detach()
                return
            self.attach()
            self._window = Window(enabled=True, interval=1, continuous=1, full=mode == "full")
            super().step_begin(step)

        def step_end(self, step: int, progress: Progress | None) -> None:
            if self._mode not in ("off", "control"):
                super().step_end(step, progress)

        def _collect(self) -> None:
            """The block that has ended."""
            profiler, self._profile = self._profile, None
            if profiler is None:
                return
            torch.cuda.synchronize()
            seconds[self._mode].append(time.perf_counter() - self._began)
            profiler.stop()
            kernels[self._mode].append(list(_kernels(profiler)))

    train(flags, plugins=[ProfiledScan])
    if ranks[0] != 0:
        return None
    timelines = {mode: _total([Timeline.of(block) for block in of]) for mode, of in kernels.items()}
    steps = {mode: len(of) * BLOCK for mode, of in kernels.items()}
    step_ms = {mode: round(sum(of) / steps[mode] * 1e3, 3) for mode, of in seconds.items()}
    usual = timelines["off"]
    compared = {mode: compare(usual, each, steps[mode]) for mode, each in timelines.items()}
    return {"step_ms": step_ms, **compared}


def _kernels(profiler: Any) -> Iterable[Kernel]:
    """Of all streams, copies and fills among them."""
    for event in profiler.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()):
            begin_us = event.start_ns() / 1e3
            yield Kernel(event.name(), begin_us, begin_us + event.duration_ns() / 1e3)


def _total(parts: Sequence[Timeline]) -> Timeline:
    gaps: dict[tuple[str, str], float] = defaultdict(float)
    for part in parts:
        for key, value in part.gaps_ms.items():
            gaps[key] += value
    return Timeline(
        sum(part.collectives_ms for part in parts),
        sum(part.others_ms for part in parts),
        sum(part.idle_ms for part in parts),
        dict(gaps),
    )


if __name__ == "__main__":
    sys.exit(main())
