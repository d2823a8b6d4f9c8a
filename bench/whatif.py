"""Operations per second of the what-if replay, on one core: `python -m bench.whatif`.

A made-up job of 16 stages with 2 chunks each, 64 microbatches, 32 replicas and 8 steps is replayed as recorded and
equalised, and decomposed by replica, stage and operation type; an operation counts once for each replay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from megatronapp.detector.whatif import schedule_graph, step_seconds

STAGES, CHUNKS, MICROBATCHES, REPLICAS, STEPS = 16, 2, 64, 32, 8


def main() -> None:
    """Print one JSON object."""
    began = time.perf_counter()
    graph = schedule_graph(STAGES, CHUNKS, MICROBATCHES)
    ordering_seconds = time.perf_counter() - began
    seconds = np.random.default_rng(0).lognormal(0.0, 0.1, (len(graph), STEPS, REPLICAS))
    equalised = np.broadcast_to(seconds.mean(), seconds.shape)
    labels = {
        "replica": np.arange(REPLICAS)[None, None, :],
        "stage": np.array([operation.stage for operation in graph.operations])[:, None, None],
        "operation": np.unique([o.operation for o in graph.operations], return_inverse=True)[1][:, None, None],
    }

    def decompose() -> int:
        replays = 0
        for label in labels.values():
            for key in np.unique(label):
                step_seconds(graph, np.where(label == key, seconds, equalised))
                replays += 1
        return replays

    replay_rate = _rate(seconds.size, lambda: int(step_seconds(graph, seconds).size > 0))
    decompose_rate = _rate(seconds.size, decompose)
    print(
        json.dumps(
            {
                "operations": seconds.size,
                "ordering_seconds": round(ordering_seconds, 3),
                "replay_operations_per_second": round(replay_rate),
                "decompose_operations_per_second": round(decompose_rate),
            }
        )
    )


def _rate(operations: int, work: Callable[[], int]) -> float:
    """Operations per second of work(), which says how many replays it made; the best of three runs."""
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        replays = work()
        best = max(best, operations * replays / (time.perf_counter() - began))
    return best


if __name__ == "__main__":
    main()
