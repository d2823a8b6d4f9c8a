"""Members that call different operations are told from heartbeats, however long the job's pauses are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from megatronapp.core.trace.membership import Process
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.members import Member
from megatronapp.detector.progress import Progress, Stall
from megatronapp.detector.signals.frontier import Side
from megatronapp.detector.signals.silence import Silence
from megatronapp.v1 import trace_pb2

WORLD = 4
NS = 10**9
CULPRIT = 2
DP = trace_pb2.Communicator(index=1, id="dp:0-1-2-3", kind="dp", ranks=range(WORLD))


def inside(operation: str = "all_reduce", elements: int = 8, **called: object) -> trace_pb2.Heartbeat:
    """Of a rank that is in its fifth collective."""
    frontier = trace_pb2.Frontier(
        communicator=1, enqueued=5, started=5, completed=4, operation=operation, elements=elements, peer=-1, **called
    )
    return trace_pb2.Heartbeat(
        step=3, frontiers=[frontier], communicators=[DP], activity=operation, phase=trace_pb2.PHASE_START
    )


def stall_of(culprit: trace_pb2.Heartbeat, *, seconds: int, lost: bool = False) -> Stall | None:
    """After so many heartbeats of each rank, of which the last one of the culprit's may be its last at all."""
    progress = Progress()
    for second in range(seconds + 1):
        for rank in range(WORLD):
            member = Member(Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1)), {})
            beat = culprit if rank == CULPRIT else inside(data_type="float32")
            member.name(beat.communicators)
            sent = trace_pb2.SentHeartbeat.FromString(beat.SerializeToString())
            progress.beat(member, sent, (second + 1) * NS)
    if lost:
        progress.lose(CULPRIT)
    return progress.stall()


def test_another_size_is_told_within_seconds_also_in_the_first_step() -> None:
    stall = stall_of(inside(elements=4, data_type="float32"), seconds=6)

    assert stall is not None
    (blame,) = stall.blamed
    assert (blame.rank, blame.side, blame.sequence) == (CULPRIT, Side.PROGRAM, 5)
    assert (blame.operation, blame.instead) == ("all_reduce of 4 float32", "all_reduce of 8 float32")


def test_another_operation_type_or_root_is_told_as_well() -> None:
    others = (
        inside("broadcast", data_type="float32", root=0),
        inside(data_type="bfloat16"),
    )
    for other in others:
        stall = stall_of(other, seconds=6)
        assert stall is not None
        assert [each.rank for each in stall.blamed] == [CULPRIT]


def test_one_that_has_died_over_it_is_told_at_once() -> None:
    stall = stall_of(inside(elements=4, data_type="float32"), seconds=0, lost=True)

    assert stall is not None
    assert [(each.rank, each.side) for each in stall.blamed] == [(CULPRIT, Side.PROGRAM)]


def test_alike_calls_and_calls_that_are_not_told_blame_nobody_before_patience_is_over() -> None:
    assert stall_of(inside(data_type="float32"), seconds=6) is None
    assert stall_of(inside(elements=0), seconds=6) is None
    assert stall_of(inside(data_type="float32"), seconds=0, lost=True) is None


def test_of_one_that_has_died_and_one_other_neither_is_named_before_the_rest_has_told() -> None:
    progress = Progress()
    culprit, other = inside(elements=4, data_type="float32"), inside(data_type="float32")

    def beat(rank: int, heartbeat: trace_pb2.Heartbeat, second: int) -> Stall | None:
        member = Member(Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1)), {})
        member.name([DP])
        progress.beat(member, trace_pb2.SentHeartbeat.FromString(heartbeat.SerializeToString()), second * NS)
        return progress.stall()

    for rank in range(WORLD):
        beat(rank, before(), 1)
    beat(CULPRIT, culprit, 2)
    progress.lose(CULPRIT)

    assert beat(3, other, 2) is None
    assert beat(0, other, 3) is None
    stall = beat(1, other, 4)

    assert stall is not None
    assert [(each.rank, each.side) for each in stall.blamed] == [(CULPRIT, Side.PROGRAM)]


@pytest.mark.parametrize(("steps", "named"), [((0, 12, 40), True), ((38, 39, 40), False)])
def test_of_short_steps_many_that_lie_between_two_heartbeats_are_known(steps: Sequence[int], named: bool) -> None:
    """A job that stands after a second of such steps does not get the patience with first ones."""
    progress = Progress()
    for second in range(10):
        for rank in range(WORLD):
            member = Member(Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1)), {})
            member.name([DP])
            beat = waiting() if rank != CULPRIT and second >= 2 else before()
            beat.step = steps[min(second, 2)]
            if not beat.step:
                beat.phase = trace_pb2.PHASE_START
            progress.beat(member, trace_pb2.SentHeartbeat.FromString(beat.SerializeToString()), (1000 + second) * NS)

    stall = progress.stall()

    assert ([] if stall is None else [blame.rank for blame in stall.blamed]) == ([CULPRIT] if named else [])


def before(step: int = 3) -> trace_pb2.Heartbeat:
    """Of a rank that has not come to its fifth collective."""
    frontier = trace_pb2.Frontier(communicator=1, enqueued=4, started=4, completed=4, peer=-1)
    return trace_pb2.Heartbeat(step=step, frontiers=[frontier], communicators=[DP], phase=trace_pb2.PHASE_STEP)


def waiting(phase: trace_pb2.Phase = trace_pb2.PHASE_STEP) -> trace_pb2.Heartbeat:
    beat = inside(data_type="float32")
    beat.phase = phase
    return beat


def ended_after(
    beats: dict[int, trace_pb2.Heartbeat], lost: set[int], order: Sequence[int] = range(WORLD)
) -> Stall | None:
    """Each rank's last heartbeat, and whose stream broke off instead of a goodbye."""
    progress = Progress()
    for said_goodbye in (False, True):
        for rank in order:
            process = Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1))
            process.closed = said_goodbye and rank not in lost
            member = Member(process, {})
            member.name([DP])
            progress.beat(member, trace_pb2.SentHeartbeat.FromString(beats[rank].SerializeToString()), NS)
            if said_goodbye and rank in lost:
                progress.lose(rank)
    return progress.stall()


def test_who_died_is_named_when_the_others_have_ended_over_it_whoever_is_heard_first() -> None:
    beats = {rank: before() if rank == CULPRIT else waiting() for rank in range(WORLD)}

    for order in ((2, 0, 1, 3), (0, 1, 3, 2)):
        stall = ended_after(beats, {CULPRIT}, order)

        assert stall is not None
        assert stall.ended
        assert [(b.rank, b.side, b.waiting) for b in stall.blamed] == [(CULPRIT, Side.HOST, (0, 1, 3))]
        assert stall.silences == {CULPRIT: Silence.ENDED}


def test_one_that_a_library_has_ended_in_the_operation_of_the_others_is_not_named() -> None:
    assert ended_after({rank: waiting() for rank in range(WORLD)}, {CULPRIT}) is None


def test_who_called_something_else_is_named_for_the_end_whoever_died_over_it() -> None:
    beats = {rank: inside(elements=4, data_type="float32") if rank == CULPRIT else waiting() for rank in range(WORLD)}

    for lost in ({CULPRIT}, {3}, {0, 3}):
        stall = ended_after(beats, lost)

        assert stall is not None
        assert stall.ended
        assert [(b.rank, b.side, b.instead) for b in stall.blamed] == [
            (CULPRIT, Side.PROGRAM, "all_reduce of 8 float32")
        ]
        assert stall.silences == dict.fromkeys(lost, Silence.ENDED)


def test_nobody_is_named_of_two_that_died() -> None:
    beats = {rank: before() if rank in (1, CULPRIT) else waiting() for rank in range(WORLD)}

    assert ended_after(beats, {1, CULPRIT}) is None


def test_nobody_is_named_of_a_job_that_was_about_to_end_or_has_gone_on_without_its_agent() -> None:
    others = {rank: waiting() for rank in range(WORLD)}

    assert ended_after(others | {0: waiting(trace_pb2.PHASE_PAUSE), CULPRIT: before()}, {CULPRIT}) is None
    assert ended_after(others | {CULPRIT: before(step=1)}, {CULPRIT}) is None
    assert ended_after(others | {CULPRIT: before()}, set()) is None


def received(step: int) -> trace_pb2.Heartbeat:
    """Of a rank that waits for a message of the rank before it, and has not come to the fifth collective."""
    message = MessageId(Direction.FORWARD, 0).pack()
    waits = trace_pb2.Frontier(
        enqueued=3,
        started=3,
        completed=2,
        operation="forward_recv",
        peer=CULPRIT - 1,
        open=[trace_pb2.OpenMessage(step=step, message=message)],
    )
    beat = before(step)
    beat.frontiers.append(waits)
    beat.activity = "forward_recv"
    return beat


@pytest.mark.parametrize(
    ("step", "attached", "named"),
    [
        pytest.param(4, trace_pb2.ATTACHED_UNSPECIFIED, {CULPRIT}, id="a later step"),
        pytest.param(3, trace_pb2.ATTACHED_UNSPECIFIED, {CULPRIT - 1, CULPRIT}, id="the same step"),
        pytest.param(4, trace_pb2.ATTACHED_PROGRAM, {CULPRIT - 1, CULPRIT}, id="not known to count the same steps"),
    ],
)
def test_who_is_in_a_later_step_than_those_who_wait_for_it_has_left_an_operation_out(
    step: int, attached: trace_pb2.Attached, named: set[int]
) -> None:
    progress = Progress()
    for rank in range(WORLD):
        identity = trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1)
        process = Process(identity, NS, trace_pb2.Placement(pipeline=rank), attached=attached)
        member, beat = Member(process, {}), received(step) if rank == CULPRIT else waiting()
        member.name([DP])
        progress.beat(member, trace_pb2.SentHeartbeat.FromString(beat.SerializeToString()), NS)
    progress.stood_still(3600.0, [0.1])

    stall = progress.stall()

    assert stall is not None
    assert {b.rank for b in stall.blamed} == named
