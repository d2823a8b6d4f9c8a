"""Heartbeats of a real run tell what the rank is in, and nobody takes what is slow in it for a hang."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import pytest
import torch.distributed as dist

from megatronapp.core.findings import Kind
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.values import Phase
from megatronapp.detector.engine import Engine
from megatronapp.detector.formats.tracefolder import find_attempts, read_messages
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.v1 import trace_pb2
from tests.integration.trainer.plugins.scan.traced import RankTrace, losses_of, read, run_traced

pytestmark = pytest.mark.long  # it waits for half a minute

SLOW_SECONDS = 2.5
VERY_SLOW_SECONDS = 8.0
"""Longer than any step may stand still in a job whose steps take moments."""
STEPS = 4
FLAGS = f"--train-iters {STEPS} --save-interval 2 --eval-interval 2 --eval-iters 1"


class Slow(Plugin):
    """Building the model and the first step take long, on one rank; so do checkpoints and evaluations."""

    name = "slow"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def configure(self, config: Any) -> None:
        self._take(SLOW_SECONDS)

    def step_begin(self, step: int) -> None:
        if step == 1:
            self._take(VERY_SLOW_SECONDS)

    def checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*args: Any, **kwargs: Any) -> Any:
            self._take(SLOW_SECONDS)
            return write(*args, **kwargs)

        return slowly

    def phase_begin(self, phase: Phase) -> None:
        if phase is Phase.EVALUATION:
            self._take(SLOW_SECONDS)

    def _take(self, seconds: float) -> None:
        if dist.get_rank() == 0:
            time.sleep(seconds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the traces of two ranks."""
    made = tmp_path_factory.mktemp("run")
    flags = f"{FLAGS} --save {made / 'checkpoints'} --trace-dir {made / 'trace'} --trace"
    run_traced(2, losses_of, flags, (ScanPlugin, Slow), timeout=180)
    return made / "trace"


def trace_of(folder: Path, rank: int) -> RankTrace:
    return read(trace_file.path_for(folder, "local/train", 1, rank))


def reporters(trace: RankTrace) -> list[str]:
    """The phases in order, each once; ordinary steps left out."""
    beats = [trace_pb2.Phase.Name(beat.phase).removeprefix("PHASE_") for beat in trace.heartbeats]
    return [phase for phase, _ in groupby(beats) if phase != "STEP"]


@pytest.mark.parametrize("rank", [0, 1])
def test_heartbeats_tell_the_phases_of_a_run_in_their_order(folder: Path, rank: int) -> None:
    between = ["EVALUATION", "CHECKPOINT"]

    # The last checkpoint is that of step 4; evaluation on test data comes after it.
    assert reporters(trace_of(folder, rank)) == ["START", *between, *between, "EVALUATION", "PAUSE"]


def test_heartbeats_tell_what_evaluations_found_the_last_one_too(folder: Path) -> None:
    found = [evaluation for beat in trace_of(folder, 0).heartbeats for evaluation in beat.evaluations]

    assert [(each.split, each.step) for each in found] == [("valid", 2), ("valid", 4), ("test", 4)]
    assert all(math.isfinite(each.loss) and each.microbatches > 0 for each in found)


def test_a_rank_is_starting_until_its_first_step_is_over(folder: Path) -> None:
    beats = trace_of(folder, 0).heartbeats

    starting = [beat.step for beat in beats if beat.phase == trace_pb2.PHASE_START]
    assert starting.count(0) >= int(SLOW_SECONDS) - 1
    assert starting.count(1) >= int(VERY_SLOW_SECONDS) - 1
    assert set(starting) == {0, 1}


def test_a_phase_is_told_as_soon_as_it_begins(folder: Path) -> None:
    beats = trace_of(folder, 0).heartbeats

    for phase in (trace_pb2.PHASE_CHECKPOINT, trace_pb2.PHASE_EVALUATION):
        inside = [beat for beat in beats if beat.phase == phase and beat.step == 2]
        assert len(inside) >= int(SLOW_SECONDS) + 1


def test_summaries_tell_of_steps_what_they_told_before(folder: Path) -> None:
    phases = {summary.step: list(summary.phases) for summary in trace_of(folder, 0).summaries}

    assert phases == {
        1: [trace_pb2.PHASE_FIRST_STEP],
        2: [],
        3: [trace_pb2.PHASE_EVALUATION, trace_pb2.PHASE_CHECKPOINT],
        4: [],
    }


def test_the_last_word_is_a_goodbye_in_the_pause_that_ends_the_run(folder: Path) -> None:
    last = trace_of(folder, 1).heartbeats[-1]

    assert (last.closing, last.phase) == (True, trace_pb2.PHASE_PAUSE)


def test_the_detector_tells_no_hang_of_it(folder: Path) -> None:
    (attempt,) = find_attempts(folder)
    engine = Engine("run", attempt.job, 1)

    found = [finding for message in read_messages(attempt) for finding in engine.feed(message)]

    assert [finding.summary for finding in found if finding.kind is Kind.HANG] == []
    assert engine.ended
