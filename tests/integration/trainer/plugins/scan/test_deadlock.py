"""Real ranks that wait for each other: what their heartbeats tell is enough to call it a deadlock."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.detector.engine import Engine
from megatronapp.detector.formats.tracefolder import find_attempts
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

LAST_STEP = 4
PATIENCE_SECONDS = 4.0
SEEN = "seen"
"""A file in the trace folder: the deadlock was told, the ranks may go."""


def cross(folder: str) -> None:
    """Two stages; in one step each reduces in a group of both in which the other does not."""
    import torch
    from megatron.core import parallel_state

    class Crossing(ScanPlugin):
        def step_begin(self, step: int) -> None:
            super().step_begin(step)
            if step == LAST_STEP:
                threading.Thread(target=leave_when_seen, args=(Path(folder),), daemon=True).start()
                of_rank = (parallel_state.get_pipeline_model_parallel_group, parallel_state.get_embedding_group)
                torch.distributed.all_reduce(torch.ones(1), group=of_rank[int(os.environ["RANK"])]())

    flags = f"--pipeline-model-parallel-size 2 --train-iters {LAST_STEP + 1} --trace --trace-dir {folder}"
    train(f"{TINY} {flags}", plugins=(Crossing,))


def leave_when_seen(folder: Path) -> None:
    while not (folder / SEEN).exists():
        time.sleep(0.1)
    os._exit(0)


def findings(folder: Path) -> list[Finding]:
    """What the detector says of the trace as far as it is written."""
    for attempt in find_attempts(folder):
        engine = Engine(attempt.job, attempt.job, attempt.number, start_patience_seconds=PATIENCE_SECONDS)
        for message in attempt.messages():
            engine.feed(message)
        return list(engine.ledger.open)
    return []


@pytest.mark.long
def test_ranks_that_reduce_in_different_orders_are_told_as_a_deadlock(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(run_forked, 2, cross, str(tmp_path), timeout=100)
        while not (told := findings(tmp_path)) and not ranks.done():
            time.sleep(0.5)
        (tmp_path / SEEN).touch()
        assert isinstance(ranks.exception(), RankFailedError)  # the ranks die without a word

    (hang,) = told
    assert (hang.kind, hang.cause, hang.ranks, hang.since_step) == (Kind.HANG, Cause.DEADLOCK, (0, 1), LAST_STEP)
    assert "rank 0 for rank 1 to enter all_reduce 1 of pp:0-1" in hang.summary
    assert "of embd:0-1" in hang.summary
