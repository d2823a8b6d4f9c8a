"""What tracing costs: step times with the scan plug-in off, at base and at full, in interleaved blocks of one run.

    python -m bench.trace_overhead                                   # one process, a small model
    torchrun --nproc-per-node 2 -m bench.trace_overhead --preset 1b --steps 200 --pipeline-model-parallel-size 2

Each round has one block of steps of each mode, in an order drawn for it; the first step of a block, which pays for
attaching and detaching, is not counted. A round gives one paired difference of block medians to the block without the
plug-in; the result is their mean with its 95 % interval (Student's t). `control` is off once more: where its interval
leaves zero out, the machine or the method is at fault, not the plug-in. At base and full every step is traced in
detail. To find what costs: `--modes control hooks without-collectives base`, the hooks in place with nothing recorded
but frontiers, and base with collectives that pass unseen. What the plug-in for NCCL costs beside an untraced step:
`--modes control nccl --nccl-trace`. `--limit-seconds 150` ends the run with the rounds that it has when the process is
so old. Unknown flags go to the trainer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from bench import _blocks
from bench._blocks import Blocks, Timings
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.launch import run as train
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.flags import ScanSettings
from megatronapp.trainer.plugins.scan.window import Window

NCCL = "nccl"
UNTRACED = ("off", "control", NCCL)
BLOCKS = Blocks(modes=("off", "control", "base", "full"), settling=1, on_demand=("hooks", "without-collectives", NCCL))


class SwitchedScan(ScanPlugin):
    """The plug-in, by the block's mode; times each step from its begin to the next one's."""

    blocks: Blocks
    timings: Timings
    facts: dict[str, Any]
    """Of this rank, for the report."""

    _began = 0.0
    _mode = "off"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="trace-overhead-"))
        plugin = cls(ScanSettings(Window(enabled=True, interval=1, continuous=1), folder, ""), context)
        cls.timings = Timings(cls.blocks)
        cls.facts = {
            "rank": context.identity.rank,
            "device": _blocks.device_name(context.device),
            "recorder": type(plugin._recorder).__name__,
            "world": context.placement.sizes.world,
        }
        return plugin

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        super().models(chunks)
        self.facts["parameters_on_rank"] = sum(p.numel() for chunk in chunks for p in chunk.parameters())

    def step_begin(self, step: int) -> None:
        now = time.perf_counter()
        mode, *_ = self.blocks.mode_of(step)
        if step > 1:
            self.timings.add(step - 1, now - self._began)
        self._began = now
        self._mode = mode
        if mode in UNTRACED:
            self.detach()
            return
        self.attach()
        self._probe.communicators = _Unseen() if mode == "without-collectives" else self._communicators
        if mode != "hooks":
            self._window = Window(enabled=True, interval=1, continuous=1, full=mode == "full")
            super().step_begin(step)

    def step_end(self, step: int, progress: Progress | None) -> None:
        if self._mode not in (*UNTRACED, "hooks"):
            super().step_end(step, progress)
        if self.facts["rank"] == 0 and self.blocks.over():
            self._context.request_stop()


class SwitchedMegatrace(MegatracePlugin):
    """NCCL is asked for its operations in the blocks of one mode."""

    blocks: Blocks

    def step_begin(self, step: int) -> None:
        self._native.ask_for(self._level if self.blocks.mode_of(step)[0] == NCCL else self._native.Level.OFF)


class _Unseen(Communicators):
    """Every group counts as one of a single rank, whose collectives nobody watches."""

    def __init__(self) -> None:
        super().__init__(lambda _new: None, range(1))

    def index(self, group: Any) -> int:
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    return _blocks.main("trace_overhead", __doc__, BLOCKS, run, argv, limited=True)


def run(flags: Sequence[str], blocks: Blocks) -> dict[str, Any] | None:
    """Train, switching the mode at block borders. The report is the first rank's."""
    if NCCL in blocks.modes and not any(flag.startswith("--nccl-trace") for flag in flags):
        raise SystemExit(f"mode {NCCL} compares what --nccl-trace switches on: give it, too")
    SwitchedScan.blocks = SwitchedMegatrace.blocks = blocks
    train(flags, plugins=[SwitchedScan, SwitchedMegatrace])
    facts = SwitchedScan.facts
    return {**facts, **_compared(SwitchedScan.timings, blocks)} if facts.pop("rank") == 0 else None


def _compared(timings: Timings, blocks: Blocks) -> dict[str, Any]:
    _blocks.end_without_rounds(timings.rounds)
    modes = {mode: timings.against_first(mode) for mode in blocks.modes[1:]}
    return {"rounds": timings.rounds, "step_seconds_off": round(timings.usual_seconds(), 6), **modes}


if __name__ == "__main__":
    sys.exit(main())
