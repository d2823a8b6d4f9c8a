"""When should a stage on a GPU choose its next operation? `python -m bench.dispatch_ahead`

The host launches an operation while the one before it runs, so that it chooses before it knows all that will have come.
Simulated: `free`, choosing and launching cost nothing, and the choice is made when it is needed; `soon`, when the
operation before the newest has ended; `paced`, as long before the newest ends as choosing and launching take, as the
trainer does (megatronapp.trainer.pipeline.pace), which has to guess when that is; `late`, when the newest has ended.
All but `free` pay `--launch-ms` from the choice to the first kernel. Printed is the gain over megatron-core's
interleaved schedule, the mean over `--draws`; one JSON object a row. Passes are those measured on an H100 unless told
otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench._dpp_predicted import CASES, DYNAMIC, STOCK, Case, Draws, Predicted
from megatronapp.core.pipeline.choosing import CHOOSING_NS, Choosing
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout

CHUNKS = 2
SIZES = ((2, 8), (4, 16))
"""Stages and microbatches."""
PASSES_MS = (5.2, 7.2, 3.4)
WHOLE_OPERATION_NS = 1 << 40
"""A lead that no operation is as long as."""


def modes(launch_ns: int) -> dict[str, Choosing]:
    return {
        "free": Choosing(),
        "soon": Choosing(WHOLE_OPERATION_NS, launch_ns),
        "paced": Choosing(launch_ns + CHOOSING_NS, launch_ns),
        "late": Choosing(0, launch_ns),
    }


def pipeline(stages: int, microbatches: int, passes_ms: Sequence[float] = PASSES_MS) -> Predicted:
    """Of stages that are alike."""
    layout = Layout(stages=stages, chunks=CHUNKS, microbatches=microbatches, split=True)
    forward, dgrad, wgrad = (each * 1e6 for each in passes_ms)
    passes = {
        DYNAMIC: {Kind.FORWARD: forward, Kind.BACKWARD: dgrad, Kind.WGRAD: wgrad},
        STOCK: {Kind.FORWARD: forward, Kind.BACKWARD: dgrad + wgrad},
    }
    by_lane = {
        mode: {(kind, chunk): each for kind, each in of.items() for chunk in range(CHUNKS)}
        for mode, of in passes.items()
    }
    ranks = [{"passes": by_lane}] * stages
    draws = Draws(layout)
    draws.base = Predicted.times(layout, ranks, DYNAMIC)
    return Predicted(layout, draws, ranks)


def gains(predicted: Predicted, case: Case, seed: int, launch_ns: int) -> dict[str, float]:
    """Over megatron-core's schedule, by mode."""
    stock_ns = predicted.run(case, STOCK, seed).end_ns
    return {
        mode: stock_ns / predicted.run(case, DYNAMIC, seed, choosing).end_ns
        for mode, choosing in modes(launch_ns).items()
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    launch_ns = round(options.launch_ms * 1e6)
    for stages, microbatches in SIZES:
        predicted = pipeline(stages, microbatches, options.passes_ms)
        for case in CASES:
            found = [gains(predicted, case, seed, launch_ns) for seed in range(options.draws)]
            means = {mode: round(float(np.mean([each[mode] for each in found])), 4) for mode in found[0]}
            yield {"stages": stages, "microbatches": microbatches, "case": case.name} | means


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60, help="steps of each case; default 60")
    parser.add_argument("--launch-ms", type=float, default=0.2, help="from a choice to its first kernel; default 0.2")
    parser.add_argument(
        "--passes-ms", type=float, nargs=3, default=PASSES_MS, metavar=("F", "B", "W"), help="of a chunk"
    )
    for row in rows(parser.parse_args(argv)):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
