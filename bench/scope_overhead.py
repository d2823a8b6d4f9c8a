"""What watching a training costs: step times with the scope plug-in on and nobody watching, and with viewers' usual
demands, in interleaved blocks of one run.

    python -m bench.scope_overhead                                   # one process, a small model
    torchrun --nproc-per-node 1 -m bench.scope_overhead --preset 1b --steps 100
    torchrun --nproc-per-node 4 -m bench.scope_overhead --preset 1b --steps 100 --tensor-model-parallel-size 2 \
      --pipeline-model-parallel-size 2

`statistics` reduces the residual stream of all layers in every step: that is the cost of a watched step, and a tenth of
it what statistics every ten steps cost. `heatmaps` are four pictures of 128 × 64 in every step: Q, K, V and the MLP's
output of a layer in the middle. Blocks, differences and intervals are those of bench.trace_overhead. Frames go to the
agent, as in any run; without a gateway it drops them. Times are the first rank's, which waits for the others in each
step; frames dropped and taps that failed are those of all ranks. Unknown flags go to the trainer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from bench import _blocks
from bench._blocks import Blocks, Timings

BLOCKS = Blocks(modes=("off", "control", "statistics", "heatmaps"), settling=1)
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


def main(argv: Sequence[str] | None = None) -> int:
    return _blocks.main("scope_overhead", __doc__, BLOCKS, run, argv)


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
            return super().create(args, context)

        def step_begin(self, step: int) -> None:
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
            if step == self._context.schedule.total_steps:
                dropped, failed = _over_all_ranks(self._viewer.queue.dropped, self._failed)
                facts.update(ranks=_ranks(), dropped_frames=dropped, taps_that_failed=failed)

        def _shard_layers(self) -> int:
            return int(self._viewer.described(trains=True, generates=False)["model"]["layers"])

    train([*flags, "--scope"], plugins=[ScanPlugin, SwitchedScope])
    if facts.pop("rank") != 0:
        return None
    modes = {mode: timings.against_first(mode) for mode in blocks.modes[1:]}
    if "statistics" in modes:
        modes["statistics"]["every_ten_steps_ratio"] = round(modes["statistics"]["longer_ratio"] / EVERY, 5)
    return {**facts, "step_seconds_off": round(timings.usual_seconds(), 6), **modes}


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
