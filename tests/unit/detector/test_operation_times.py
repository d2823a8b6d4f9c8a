"""A rank that the others wait for in a collective is named by how long that operation has ever taken, however long the
job's steps are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.operation_times import OperationTimes
from megatronapp.detector.patience import KNOWN_RANK_STEPS
from megatronapp.detector.progress import Progress
from megatronapp.detector.steps import Group, StepTable
from megatronapp.v1 import trace_pb2
from tests.unit.detector.whatif.tables import OPERATIONS, step_table

WORLD, CULPRIT, NS = 4, 2, 10**9
STEP_SECONDS = 60
GROUP = Group("dp:0-1-2-3", "dp", tuple(range(WORLD)))
DP = trace_pb2.Communicator(index=1, id=GROUP.id, kind="dp", ranks=range(WORLD))
OPERATION = OPERATIONS[3]
NODE = "node-0"


def step(seconds: float) -> StepTable:
    """Whose collective takes so long."""
    return step_table(1, WORLD, [0.01] * WORLD, collective=seconds, groups=(GROUP,))


def known(longest: float = 0.5) -> OperationTimes:
    times = OperationTimes()
    for _ in range(KNOWN_RANK_STEPS // WORLD):
        times.note(step(0.1))
    times.note(step(longest))
    return times


def heartbeat(number: int, enqueued: int, completed: int, phase: trace_pb2.Phase) -> trace_pb2.SentHeartbeat:
    operation = OPERATION if enqueued > completed else ""
    frontier = trace_pb2.Frontier(
        communicator=1, enqueued=enqueued, started=enqueued, completed=completed, operation=operation, peer=-1
    )
    beat = trace_pb2.Heartbeat(step=number, frontiers=[frontier], communicators=[DP], phase=phase)
    return trace_pb2.SentHeartbeat.FromString(beat.SerializeToString())


class LongSteps:
    """A job of long steps, second by second."""

    def __init__(self, times: OperationTimes, node: str = NODE) -> None:
        """node: the culprit's."""
        self.progress = Progress()
        self.progress.operation_times = times
        processes = [
            Process(
                trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1),
                placement=trace_pb2.Placement(node=node if rank == CULPRIT else NODE),
            )
            for rank in range(WORLD)
        ]
        self._members = [Member(process, {}) for process in processes]
        for member in self._members:
            member.name([DP])
        self._second = 0
        for number in range(1, 5):
            self.pass_time(STEP_SECONDS, number)

    def pass_time(
        self,
        seconds: int,
        number: int,
        *,
        entered: bool = False,
        phase: trace_pb2.Phase = trace_pb2.PHASE_STEP,
        gone: tuple[int, ...] = (),
    ) -> None:
        """entered: all but one have entered the step's collective."""
        for _ in range(seconds):
            self._second += 1
            for rank, member in enumerate(self._members):
                if rank in gone:
                    continue
                enqueued = number if entered and rank != CULPRIT else number - 1
                beat = heartbeat(number, enqueued, number - 1, phase)
                self.progress.beat(member, beat, self._second * NS)


def test_within_a_step_of_a_minute_who_does_not_come_is_named_within_seconds() -> None:
    watched = LongSteps(known())
    watched.pass_time(STEP_SECONDS, 5)
    assert watched.progress.stall() is None

    watched.pass_time(8, 5, entered=True)

    stall = watched.progress.stall()
    assert stall is not None
    assert [each.rank for each in stall.blamed] == [CULPRIT]


@pytest.mark.parametrize(
    ("times", "phase"),
    [
        (OperationTimes(), trace_pb2.PHASE_STEP),
        (known(longest=30.0), trace_pb2.PHASE_STEP),
        (known(), trace_pb2.PHASE_CHECKPOINT),
    ],
    ids=["nothing is known yet", "one step took longer", "a checkpoint is written"],
)
def test_it_is_waited_for_as_long_as_the_jobs_pauses_allow_where(times: OperationTimes, phase: trace_pb2.Phase) -> None:
    watched = LongSteps(times)

    watched.pass_time(20, 5, entered=True, phase=phase)

    assert watched.progress.stall() is None


def test_who_has_died_is_named_within_seconds_also_before_anything_is_known() -> None:
    job = LongSteps(OperationTimes())
    job.pass_time(1, 5, entered=True)

    job.progress.lose(CULPRIT)
    job.pass_time(6, 5, entered=True, gone=(CULPRIT,))

    stall = job.progress.stall()
    assert stall is not None
    assert [each.rank for each in stall.blamed] == [CULPRIT]
    assert stall.silences[CULPRIT] == "ended"


def test_who_is_not_heard_of_with_all_of_its_node_may_go_on() -> None:
    job = LongSteps(OperationTimes(), node="a node of its own")
    job.pass_time(1, 5, entered=True)

    job.progress.lose(CULPRIT)
    job.pass_time(6, 5, entered=True, gone=(CULPRIT,))

    assert job.progress.stall() is None


def test_steps_with_something_else_in_them_teach_nothing() -> None:
    times = OperationTimes()
    for _ in range(KNOWN_RANK_STEPS):
        times.note(replace(step(0.1), phases=frozenset({trace_pb2.PHASE_CHECKPOINT})))

    assert times.patience(GROUP.id, OPERATION) == math.inf


def test_each_operation_of_each_kind_of_communicator_has_times_of_its_own() -> None:
    times = known(longest=2.0)

    assert times.patience("dp:8-9", OPERATION) == 9.0
    assert times.patience("tp:0-1", OPERATION) == math.inf
    assert times.patience(GROUP.id, "another") == math.inf
