"""Real ranks that wait for each other: what their heartbeats tell is enough to call it a deadlock."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.engine import Engine
from megatronapp.detector.formats.tracefolder import find_attempts
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

LAST_STEP = 4
STUCK_SECONDS = 8.0


def cross(folder: str) -> None:
    """Two stages; in one step each reduces in a group of both in which the other does not."""
    import torch
    from megatron.core import parallel_state

    class Crossing(ScanPlugin):
        def step_begin(self, step: int) -> None:
            super().step_begin(step)
            if step == LAST_STEP:
                threading.Timer(STUCK_SECONDS, os._exit, (0,)).start()
                of_rank = (parallel_state.get_pipeline_model_parallel_group, parallel_state.get_embedding_group)
                torch.distributed.all_reduce(torch.ones(1), group=of_rank[int(os.environ["RANK"])]())

    flags = f"--pipeline-model-parallel-size 2 --train-iters {LAST_STEP + 1} --trace --trace-dir {folder}"
    train(f"{TINY} {flags}", plugins=(Crossing,))


def test_ranks_that_reduce_in_different_orders_are_told_as_a_deadlock(tmp_path: Path) -> None:
    with contextlib.suppress(RankFailedError):  # the ranks die without a word
        run_forked(2, cross, str(tmp_path), timeout=180)

    (attempt,) = find_attempts(tmp_path)
    engine = Engine(attempt.job, attempt.job, attempt.number, start_patience_seconds=STUCK_SECONDS / 2)
    for message in attempt.messages():
        engine.feed(message)
    (hang,) = engine.ledger.open
    assert (hang.kind, hang.cause, hang.ranks, hang.since_step) == (Kind.HANG, Cause.DEADLOCK, (0, 1), LAST_STEP)
    assert "rank 0 for rank 1 to enter all_reduce 1 of pp:0-1" in hang.summary
    assert "of embd:0-1" in hang.summary
