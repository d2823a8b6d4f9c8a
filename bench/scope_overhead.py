"""What watching a training costs: step times with the scope plug-in on and nobody watching, and with viewers' usual
demands, in interleaved blocks of one run.

    python -m bench.scope_overhead                                   # one process, a small model
    torchrun --nproc-per-node 1 -m bench.scope_overhead --preset 1b --steps 100
    torchrun --nproc-per-node 4 -m bench.scope_overhead --preset 1b --steps 100 --modes control statistics \
      --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2

`statistics` reduces the residual stream of all layers in every step: that is the cost of a watched step, and a tenth of
it what statistics every ten steps cost. `heatmaps` are four pictures of 128 × 64 in every step: Q, K, V and the MLP's
output of a layer in the middle. Each round has a block of three counted steps of each mode, in an order drawn for it,
after one that pays for the change and is not counted: so a host whose pace wavers is as slow for all of them. A round
gives one paired difference of block medians to the block that nobody watches; the result is their mean without the
fifth at either end, with its 95 % interval. `control` is off once more: where its interval leaves zero out, the machine
or the method is at fault.

Each rank keeps to its own share of the cores. `--limit-seconds 150` ends the run with the rounds that it has when the
process is so old. Frames go to the agent, as in any run; without a gateway it drops them. Times are the first rank's,
which waits for the others in each step; frames dropped and taps that failed are those of all ranks. Unknown flags go to
the trainer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from bench import _blocks
from bench._blocks import Blocks, Timings

BLOCKS = Blocks(modes=("off", "control", "statistics", "heatmaps"), settling=1, length=3)
STATISTICS = ("layers[*].resid_post | stats(mean,std,absmax,p01,p50,p99,zero,nonfinite)",)
HEATMAPS = tuple(
    f"layers[{{middle}}].{site} | batch(0) | {rest} | pool(token,128,farthest)"
    for site, rest in (
        ("attn.q", "head(0)"),
        ("attn.k", "group(0)"),
        ("attn.v", "group(0)"),
        ("mlp.out", "pool(chan,64,absmax)"),
    )
)
EVERY = 10
FROZEN_AT = 2
"""The first step that may be counted: what a training makes once is there."""


def main(argv: Sequence[str] | None = None) -> int:
    return _blocks.main("scope_overhead", __doc__, BLOCKS, run, argv, limited=True)


def run(flags: Sequence[str], blocks: Blocks) -> dict[str, Any] | None:
    """Train, switching the demand at block borders. The report is the first rank's."""
    from megatronapp.trainer.launch import run as train
    from megatronapp.trainer.plugins.base import PluginContext
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scope import ScopePlugin

    timings = Timings(blocks)
    facts: dict[str, Any] = {}

    class SwitchedScope(ScopePlugin):
        """The plug-in, asked for what the block's mode says; times each step from its begin to the next one's."""

        _began = 0.0
        _mode = "off"
        _failed = 0

        @classmethod
        def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
            facts.update(rank=context.identity.rank, device=_blocks.device_name(context.device))
            _blocks.keep_to_own_cores()
            return super().create(args, context)

        def step_begin(self, step: int) -> None:
            if step == FROZEN_AT:
                _blocks.freeze_garbage()
            now = time.perf_counter()
            if step > 1:
                timings.add(step - 1, now - self._began)
            self._began = now
            mode, *_ = blocks.mode_of(step)
            if mode != self._mode:
                self._mode = mode
                self._viewer.show({"taps": _taps(mode, self._shard_layers())}, 0.0)
                self._attach()
            super().step_begin(step)

        def step_end(self, step: int, progress: Any) -> None:
            super().step_end(step, progress)
            self._failed += len(_taps(self._mode, self._shard_layers())) - len(self._viewer.readers)
            if self._rank == 0 and blocks.over():
                self._context.request_stop()

        def training_end(self) -> None:
            super().training_end()
            dropped, failed = _over_all_ranks(self._viewer.queue.dropped, self._failed)
            facts.update(ranks=_ranks(), dropped_frames=dropped, taps_that_failed=failed)

        def _shard_layers(self) -> int:
            return int(self._viewer.described(trains=True, generates=False)["model"]["layers"])

    train([*flags, "--scope"], plugins=[ScanPlugin, SwitchedScope])
    return {**facts, **_compared(timings, blocks)} if facts.pop("rank") == 0 else None


def _compared(timings: Timings, blocks: Blocks) -> dict[str, Any]:
    _blocks.end_without_rounds(timings.rounds)
    modes = {mode: timings.robustly_against_first(mode) for mode in blocks.modes[1:]}
    if "statistics" in modes:
        modes["statistics"]["every_ten_steps"] = _a_tenth(modes["statistics"])
    return {"rounds": timings.rounds, "step_seconds_off": round(timings.robust_seconds(), 6), **modes}


def _a_tenth(found: dict[str, Any]) -> dict[str, Any]:
    low, high = found["interval_95"]
    return _blocks.as_ratio(found["longer_ratio"] / EVERY, (high - low) / 2 / EVERY)


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def _over_all_ranks(*counts: int) -> list[int]:
    """Their sums."""
    import torch.distributed as dist

    of_ranks: list[Any] = [None] * _ranks()
    dist.all_gather_object(of_ranks, counts)
    return [sum(column) for column in zip(*of_ranks, strict=True)]


def _taps(mode: str, layers: int) -> list[dict[str, Any]]:
    chosen = {"statistics": STATISTICS, "heatmaps": HEATMAPS}.get(mode, ())
    return [
        {"id": number, "expression": text.format(middle=layers // 2)} for number, text in enumerate(chosen, start=1)
    ]


if __name__ == "__main__":
    sys.exit(main())
