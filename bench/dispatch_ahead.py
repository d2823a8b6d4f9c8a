"""When should a stage on a GPU choose its next operation? `python -m bench.dispatch_ahead`

The host launches an operation while the one before it runs, so that it chooses before it knows all that will have come.
Simulated: `free`, choosing and launching cost nothing, and the choice is made when it is needed; `soon`, when the
operation before the newest has ended; `paced`, as long before the newest ends as choosing and launching take, as the
trainer does (megatronapp.trainer.pipeline.pace), which has to guess when that is; `late`, when the newest has ended;
`planned`, the hint's order as it is, launched as soon as the host can. All that choose but `free` pay
`--launch-ms` from the choice to the first kernel, and all but `free` `--host-ms`, which the host takes to launch a
whole pass: megatron-core's schedule, too. Printed is the gain over that one, interleaved, the mean over `--draws`; one
JSON object a row. Passes are those measured on an H100 unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench._dpp_predicted import CASES, DYNAMIC, PLANNED, STOCK, Case, Draws, Predicted
from megatronapp.core.pipeline.choosing import CHOOSING_NS, FREE, Choosing
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout

CHUNKS = 2
SIZES = ((2, 8), (4, 16))
"""Stages and microbatches."""
PASSES_MS = (5.2, 7.2, 3.4)
WHOLE_OPERATION_NS = 1 << 40
"""A lead that no operation is as long as."""


def modes(predicted: Predicted, launch_ns: int) -> dict[str, tuple[str, Choosing]]:
    """What is run, and when it is chosen."""
    host_ns = predicted.choosing(predicted.layout).host_ns
    lead_ns = CHOOSING_NS + max(launch_ns, int(np.max(host_ns)))
    return {
        "free": (DYNAMIC, FREE),
        "soon": (DYNAMIC, Choosing(WHOLE_OPERATION_NS, launch_ns, host_ns)),
        "paced": (DYNAMIC, Choosing(lead_ns, launch_ns, host_ns)),
        "late": (DYNAMIC, Choosing(0, launch_ns, host_ns)),
        "planned": (PLANNED, Choosing(host_ns=host_ns)),
    }


def pipeline(
    stages: int, microbatches: int, passes_ms: Sequence[float] = PASSES_MS, host_ms: Sequence[float] = (0, 0, 0)
) -> Predicted:
    """Of stages that are alike, and so are their hosts, which take so long to launch F, B and W."""
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
    launch_ms = {(kind, chunk): host_ms[kind] for kind in Kind for chunk in range(CHUNKS)}
    ranks = [{"passes": by_lane, "launch_ms": launch_ms}] * stages
    draws = Draws(layout)
    draws.base = Predicted.times(layout, ranks, DYNAMIC)
    return Predicted(layout, draws, ranks)


def gains(predicted: Predicted, case: Case, seed: int, launch_ns: int) -> dict[str, float]:
    """Over megatron-core's schedule, by mode."""
    found = {}
    for name, (mode, choosing) in modes(predicted, launch_ns).items():
        stock_ns = predicted.run(case, STOCK, seed, FREE if choosing is FREE else None).end_ns
        found[name] = stock_ns / predicted.run(case, mode, seed, choosing).end_ns
    return found


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    launch_ns = round(options.launch_ms * 1e6)
    for stages, microbatches in SIZES:
        predicted = pipeline(stages, microbatches, options.passes_ms, options.host_ms)
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
    parser.add_argument(
        "--host-ms",
        type=float,
        nargs=3,
        default=(0, 0, 0),
        metavar=("F", "B", "W"),
        help="to launch one; default 0 0 0",
    )
    for row in rows(parser.parse_args(argv)):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
