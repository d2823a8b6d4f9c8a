"""Positions are worked out when somebody asks for them, and that changes nothing; that a rank has moved shows in the
bytes of its frontiers.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.positions import Positions
from megatronapp.detector.progress import Progress, Stall
from megatronapp.detector.signals.frontier import Position
from megatronapp.v1 import trace_pb2

WORLD = 3
NS = 10**9
NUMBERS = st.integers(0, 2)
COMMUNICATORS = st.builds(
    trace_pb2.Communicator,
    index=st.integers(1, 3),
    id=st.sampled_from(["tp:0-1", "dp:0-1-2", "pp:0-2"]),
    ranks=st.just(range(WORLD)),
)
OPEN = st.builds(trace_pb2.OpenMessage, step=NUMBERS, message=NUMBERS)
FRONTIERS = st.builds(
    trace_pb2.Frontier,
    communicator=st.integers(0, 4),
    enqueued=NUMBERS,
    started=NUMBERS,
    completed=NUMBERS,
    enqueued_at_ns=NUMBERS,
    completed_at_ns=NUMBERS,
    operation=st.sampled_from(["", "all_reduce", "forward_send"]),
    peer=st.integers(-1, WORLD - 1),
    sending=st.booleans(),
    open=st.lists(OPEN, max_size=2),
)
HEARTBEATS = st.builds(
    trace_pb2.Heartbeat,
    step=st.integers(1, 2),
    frontiers=st.lists(FRONTIERS, max_size=3),
    communicators=st.lists(COMMUNICATORS, max_size=2),
    activity=st.sampled_from(["", "all_reduce"]),
    phase=st.just(trace_pb2.PHASE_STEP),
)
"""Of few values, so that many tell the same as others."""


@dataclass(frozen=True)
class Arrival:
    rank: int
    heartbeat: trace_pb2.Heartbeat
    after_seconds: int


SEQUENCES = st.lists(
    st.builds(Arrival, rank=st.integers(0, WORLD - 1), heartbeat=HEARTBEATS, after_seconds=st.integers(0, 9)),
    max_size=20,
)


def member(rank: int) -> Member:
    return Member(Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank, incarnation=1)), {})


def sent(heartbeat: trace_pb2.Heartbeat) -> trace_pb2.SentHeartbeat:
    return trace_pb2.SentHeartbeat.FromString(heartbeat.SerializeToString())


def positions_of(rank: Member, heartbeat: trace_pb2.Heartbeat) -> Positions:
    return Positions(rank.process.rank, rank.groups, sent(heartbeat).frontiers)


def expected(member: Member, heartbeat: trace_pb2.Heartbeat) -> dict[str, Position]:
    rank, positions = member.process.rank, {}
    for f in heartbeat.frontiers:
        if f.peer >= 0 and (f.sending or f.peer != rank):
            name = f"p2p:{rank}-{f.peer}" if f.sending else f"p2p:{f.peer}-{rank}"
        elif f.communicator in member.groups:
            name = member.groups[f.communicator].id
        else:
            continue
        named = all(m.message for m in f.open)
        opened = tuple((m.step, m.message) for m in f.open) if named else ()
        positions[name] = Position(
            f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending, opened, None, 0, f.enqueued_at_ns
        )
    return positions


@given(st.lists(HEARTBEATS, min_size=1, max_size=6))
def test_positions_that_are_worked_out_later_are_those_of_their_time(heartbeats: list[trace_pb2.Heartbeat]) -> None:
    rank, positions, of_their_time = member(0), list[Positions](), list[dict[str, Position]]()

    for heartbeat in heartbeats:
        rank.name(heartbeat.communicators)
        positions.append(positions_of(rank, heartbeat))
        of_their_time.append(expected(rank, heartbeat))

    for one, its in zip(positions, of_their_time, strict=True):
        assert list(one.by_communicator().items()) == list(its.items())
        assert one.completed() == {name: position.completed for name, position in its.items()}
        assert one.members().keys() == its.keys()


@given(SEQUENCES)
def test_stalls_do_not_depend_on_who_looks_in_between(sequence: list[Arrival]) -> None:
    assert stalls(sequence, looking=False) == stalls(sequence, looking=True)


def stalls(sequence: list[Arrival], *, looking: bool) -> list[tuple[float, Stall | None]]:
    """After each heartbeat."""
    progress, members, now_ns, found = Progress(5.0), [member(rank) for rank in range(WORLD)], NS, []
    for arrival in sequence:
        rank, heartbeat, now_ns = arrival.rank, arrival.heartbeat, now_ns + arrival.after_seconds * NS
        members[rank].name(heartbeat.communicators)
        progress.beat(members[rank], sent(heartbeat), now_ns)
        if looking:
            progress.lags()
        found.append((progress.stalled_seconds, progress.stall()))
    return found


@given(HEARTBEATS, HEARTBEATS)
def test_a_rank_has_moved_where_its_step_or_a_frontier_is_another(
    first: trace_pb2.Heartbeat, second: trace_pb2.Heartbeat
) -> None:
    progress, rank = Progress(5.0), member(0)
    progress.beat(rank, sent(first), NS)

    progress.beat(rank, sent(second), 2 * NS)

    moved = second.step != first.step or list(second.frontiers) != list(first.frontiers)
    assert (progress.stalled_seconds == 0) == moved


BROKEN = {
    "no message": b"\x0a\x7f",
    "no text": trace_pb2.Frontier(communicator=1, peer=-1).SerializeToString() + b"\x3a\x01\xff",
    "an implausible number": trace_pb2.Frontier(communicator=1, peer=-1, completed=1 << 63).SerializeToString(),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_frontier_that_can_t_be_understood_hides_its_own_rank_s_place_and_no_other_s(broken: bytes) -> None:
    progress, members = Progress(5.0), [member(rank) for rank in range(WORLD)]
    everybody = trace_pb2.Communicator(index=1, id="dp:0-1-2", ranks=range(WORLD))
    waiting = trace_pb2.Frontier(communicator=1, enqueued=3, started=3, completed=2, peer=-1).SerializeToString()
    behind = trace_pb2.Frontier(communicator=1, enqueued=2, started=2, completed=2, peer=-1).SerializeToString()
    frontiers = {0: waiting, 1: behind, 2: broken}
    for second in range(40):
        for rank, frontier in frontiers.items():
            members[rank].name([everybody])
            beat = trace_pb2.SentHeartbeat(step=1, phase=trace_pb2.PHASE_STEP, frontiers=[frontier])
            progress.beat(members[rank], beat, (second + 1) * NS)

    found = progress._locate_stall()

    assert {blame.rank for blame in found.blamed} == {1, 2}
    assert progress.lags() == {"dp": 0}


def test_a_stall_is_looked_at_once_a_second_and_each_rank_s_frontiers_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, seconds = 50, 20
    progress, members = Progress(5.0), [member(rank) for rank in range(ranks)]
    looked, read = list[int](), list[int]()
    by_communicator, placed = Positions.by_communicator, Positions._placed
    monkeypatch.setattr(Positions, "by_communicator", lambda own: looked.append(own.rank) or by_communicator(own))
    monkeypatch.setattr(Positions, "_placed", lambda own: read.append(own.rank) or placed(own))

    for second in range(seconds):
        for rank in range(ranks):
            beat = trace_pb2.Heartbeat(phase=trace_pb2.PHASE_START, frontiers=[trace_pb2.Frontier(communicator=1)])
            progress.beat(members[rank], sent(beat), second * NS + rank * NS // ranks + 1)
            progress.stall()

    assert progress.stalled_seconds > seconds - 3
    assert ranks < len(looked) <= ranks * seconds
    assert sorted(read) == list(range(ranks))
