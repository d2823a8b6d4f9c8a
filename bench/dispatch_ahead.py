"""When should a stage on a GPU choose its next operation? `python -m bench.dispatch_ahead`

The host launches an operation while the one before it runs, so that it chooses before it knows all that will have come.
Simulated with MegaDPP's policy: `free`, choosing and launching cost nothing, and the choice is made when it is needed;
`soon`, the choice is made when the operation before the newest has ended; `paced`, shortly before the newest ends, as
far as the trainer can tell (megatronapp.trainer.pipeline.pace); `late`, when the newest has ended. All but `free` pay
`--launch-ms` from the choice to the first kernel. Printed is the gain over megatron-core's interleaved schedule, the
mean over `--draws`; one JSON object a row. Passes are those measured on an H100 unless told otherwise.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from bench._dpp_predicted import CASES, HINT, Case, Draws
from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.arrays import Floats
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.trainer.pipeline.pace import Durations

CHUNKS = 2
SIZES = ((2, 8), (4, 16))
"""Stages and microbatches."""
FREE, SOON, PACED, LATE = "free", "soon", "paced", "late"
MODES = (FREE, SOON, PACED, LATE)


class Stage:
    """One stage: its policy, its device, and when it may choose again. Times are in seconds."""

    def __init__(self, policy: StagePolicy, mode: str, launch_seconds: float, durations: Durations) -> None:
        self.policy, self.mode, self._launch, self._durations = policy, mode, launch_seconds, durations
        self.free_at = 0.0
        self.waits = False
        """Nothing could run when it last chose."""
        durations.begin_step()

    def run(self, operation: Operation, now: float, seconds: float) -> tuple[float, float]:
        """When it ends, and when the next one may be chosen."""
        before, begin = self.free_at, max(self.free_at, now + self._launch)
        self.free_at = begin + seconds
        self.policy.start(operation)
        self.policy.end(operation)
        choosing = {SOON: before, PACED: self._nearly(operation, begin, seconds)}.get(self.mode, self.free_at)
        return self.free_at, max(now, choosing)

    def _nearly(self, operation: Operation, begin: float, seconds: float) -> float:
        expected = self._durations.expected(operation)
        self._durations.observe(operation, seconds)
        self._durations.observe_launch(operation, self._launch)
        if expected is None:
            return begin
        ahead = expected.error_seconds + self._durations.lead_seconds
        return min(self.free_at, max(begin, begin + expected.seconds - ahead))


def step_seconds(layout: Layout, stages: Sequence[Stage], durations: Floats, late: Floats) -> float:
    """durations by (stage, F B W, chunk, microbatch); late, how much later than it was sent an input comes, by (stage,
    F B, chunk, microbatch)."""
    order, events = count(), list[tuple[float, int, int, int, Operation | None]]()

    def choose(number: int, now: float) -> None:
        stage = stages[number]
        operation = stage.policy.choose()
        stage.waits = operation is None
        if operation is None:
            return
        end, again = stage.run(operation, now, float(durations[(number, *operation)]))
        following = layout.following(number, operation.kind, operation.chunk)
        if following is not None and following[0] != number:
            fed = Operation(Kind(following[1]), following[2], operation.microbatch)
            arrival = end + float(late[(following[0], *fed)])
            heapq.heappush(events, (arrival, 0, next(order), following[0], fed))
        if not stage.policy.finished:
            heapq.heappush(events, (again, 1, next(order), number, None))

    for number in range(len(stages)):
        choose(number, 0.0)
    while events:
        now, _, _, number, arrived = heapq.heappop(events)
        if arrived is not None:
            stages[number].policy.arrived(arrived)
        if arrived is None or stages[number].waits:
            choose(number, now)
    return max(stage.free_at for stage in stages)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for stages, microbatches in SIZES:
        layout = Layout(stages=stages, chunks=CHUNKS, microbatches=microbatches, split=True)
        for case in CASES:
            learnt = {mode: [Durations() for _ in range(stages)] for mode in MODES}
            steps = [gains(layout, case, seed, options, learnt) for seed in range(options.draws)]
            means = {mode: round(float(np.mean([step[mode] for step in steps])), 4) for mode in MODES}
            yield {"stages": stages, "microbatches": microbatches, "case": case.name} | means


def gains(
    layout: Layout, case: Case, seed: int, options: argparse.Namespace, learnt: dict[str, list[Durations]]
) -> dict[str, float]:
    """Over megatron-core's schedule, by mode."""
    whole = Layout(stages=layout.stages, chunks=layout.chunks, microbatches=layout.microbatches, split=False)
    draws = Draws(layout)
    base = np.array(options.passes_ms)[:, None, None] * np.ones((1, layout.stages, layout.chunks))
    draws.base = base * 1e6
    split = (base.transpose(1, 0, 2)[..., None] * 1e6 + draws.pads(case, seed)) / 1e9
    merged = np.stack([split[:, Kind.FORWARD], split[:, Kind.BACKWARD] + split[:, Kind.WGRAD]], axis=1)
    late = np.asarray(draws.late(case, seed) / 1e9)

    def policies(of: Layout, hint: str, *, strict: bool) -> list[StagePolicy]:
        hints, cap = orders.all_stages(hint, of), caps.stock_cap(whole)
        return [StagePolicy(of, stage, order, cap=cap, strict=strict) for stage, order in enumerate(hints)]

    stock = [Stage(each, FREE, 0.0, Durations()) for each in policies(whole, "interleaved", strict=True)]
    stock_seconds = step_seconds(whole, stock, merged, late)
    found = {}
    for mode in MODES:
        launch = 0.0 if mode == FREE else options.launch_ms / 1e3
        chosen = policies(layout, HINT, strict=False)
        stages = [Stage(each, mode, launch, own) for each, own in zip(chosen, learnt[mode], strict=True)]
        found[mode] = stock_seconds / step_seconds(layout, stages, split, late)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60, help="steps of each case; default 60")
    parser.add_argument("--launch-ms", type=float, default=0.2, help="from a choice to its first kernel; default 0.2")
    parser.add_argument(
        "--passes-ms", type=float, nargs=3, default=[5.2, 7.2, 3.4], metavar=("F", "B", "W"), help="of a chunk"
    )
    for row in rows(parser.parse_args(argv)):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
