"""A hang that the collector's store holds: `analyze` names whom the streaming detector named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from megatronapp.collector import notes
from megatronapp.collector.jobs import Attempt
from megatronapp.collector.received import from_record
from megatronapp.collector.store import Manifest, Store
from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.detector.analyze import analyze
from megatronapp.detector.engine import Engine
from megatronapp.detector.report import Report
from megatronapp.v1 import trace_pb2
from tests.support.simulated import CPU, Job, Layout

SECOND = 10**9
STEPS = 12


class Recorded:
    """A job of two replicas: every message goes to the collector's attempt, and to the streaming detector's engine."""

    def __init__(self) -> None:
        self.job = Job(Layout(pp=1, dp=2), CPU, on_cpu=True)
        self.attempt = Attempt(self.job.run, "test/simulated", 1, 1, 1)
        self.engine = Engine(self.job.run, "test/simulated", 1)
        self.live: list[Finding] = []
        self.feed(self.job.hellos())
        for step in range(1, STEPS + 1):
            self.feed(self.job.step(step))
            self.beat((step, step), (step, step), step=step)

    def feed(self, messages: Sequence[trace_pb2.RankMessage]) -> None:
        for message in messages:
            if message.message.HasField("hello"):
                message.message.hello.identity.CopyFrom(message.identity)
            self.attempt.take(from_record(message.SerializeToString()))
            self.live += self.engine.feed(message)

    def beat(
        self,
        entered: tuple[int, int],
        done: tuple[int, int],
        ranks: Sequence[int] = (0, 1),
        step: int = STEPS + 1,
        **fields: object,
    ) -> None:
        """A second later the ranks say how far they are."""
        self.job.clock_ns += SECOND
        heartbeat = {"phase": trace_pb2.PHASE_STEP} | fields
        for rank in ranks:
            position = trace_pb2.Frontier(
                communicator=1, peer=-1, enqueued=entered[rank], started=entered[rank], completed=done[rank]
            )
            self.feed([self.job.heartbeat(rank, step, [position], **heartbeat)])

    def hang(self, seconds: int, ranks: Sequence[int] = (0, 1), **fields: object) -> None:
        """Rank 1 does not enter the operation that rank 0 is in."""
        for _ in range(seconds):
            self.beat((STEPS + 1, STEPS), (STEPS, STEPS), ranks, **fields)

    def analysed(self, folder: Path) -> list[Finding]:
        return [finding for finding in self.report(folder).findings if finding.kind is Kind.HANG]

    def report(self, folder: Path) -> Report:
        store, manifest = Store(folder), Manifest(write=1)
        store.write({self.attempt.key: self.attempt.buffer}, {self.attempt.key: notes.pack(self.attempt)}, manifest)
        return analyze(folder)


def verdicts(findings: Sequence[Finding]) -> set[tuple[Cause, tuple[int, ...], int | None]]:
    return {(finding.cause, finding.ranks, finding.since_step) for finding in findings if finding.kind is Kind.HANG}


def test_a_hang_is_told_as_it_was_live(tmp_path: Path) -> None:
    job = Recorded()
    job.hang(20)

    (found,) = job.analysed(tmp_path)

    assert (found.cause, found.ranks, found.page) == (Cause.HOST_CPU, (1,), True)
    assert verdicts([found]) == verdicts(job.live)


def test_a_hang_is_told_as_values_too(tmp_path: Path) -> None:
    job = Recorded()
    job.hang(20)

    hang = job.report(tmp_path).hang

    assert hang is not None
    assert (hang.ranks, hang.sequence, hang.side) == ((1,), STEPS + 1, "host")


def test_a_hang_that_ended_with_the_ranks_goodbyes_is_still_one(tmp_path: Path) -> None:
    job = Recorded()
    job.hang(20)
    job.hang(1, closing=True)

    assert verdicts(job.analysed(tmp_path)) == verdicts(job.live) == {(Cause.HOST_CPU, (1,), STEPS + 1)}


def test_a_rank_that_died_is_named_by_its_silence(tmp_path: Path) -> None:
    job = Recorded()
    job.hang(20, ranks=[0])

    assert {found.ranks for found in job.analysed(tmp_path)} == {(1,)}


@pytest.mark.parametrize(
    "end",
    [
        pytest.param({"seconds": 1}, id="killed within a step"),
        pytest.param({"seconds": 1, "closing": True}, id="failed within a step"),
        pytest.param({"seconds": 60, "phase": trace_pb2.PHASE_PAUSE}, id="held"),
        pytest.param({"seconds": 60, "phase": trace_pb2.PHASE_CHECKPOINT}, id="in its first checkpoint"),
    ],
)
def test_a_job_that_ended_otherwise_did_not_hang(tmp_path: Path, end: dict[str, int]) -> None:
    job = Recorded()
    job.hang(**end)

    assert job.analysed(tmp_path) == []
    assert verdicts(job.live) == set()


def test_a_rank_that_failed_while_the_others_worked_is_no_hang_of_theirs(tmp_path: Path) -> None:
    job = Recorded()
    job.beat((STEPS + 1, STEPS), (STEPS, STEPS), [1], closing=True)
    job.hang(20, ranks=[0])

    assert job.analysed(tmp_path) == []
    assert verdicts(job.live) == set()


def test_time_that_no_heartbeat_shows_is_no_hang(tmp_path: Path) -> None:
    job = Recorded()
    job.hang(1)
    job.job.clock_ns += 3600 * SECOND
    job.hang(1)

    assert job.analysed(tmp_path) == []
