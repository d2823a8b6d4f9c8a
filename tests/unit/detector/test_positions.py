"""Positions are worked out when somebody asks for them, and that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace.heartbeat import same_frontiers
from megatronapp.core.trace.membership import Process
from megatronapp.detector import positions
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


def eager(member: Member, heartbeat: trace_pb2.Heartbeat) -> dict[str, Position]:
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
        positions[name] = Position(f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending, opened)
    return positions


@given(st.lists(HEARTBEATS, min_size=2, max_size=6))
def test_positions_that_are_worked_out_later_are_those_of_their_time(heartbeats: list[trace_pb2.Heartbeat]) -> None:
    rank, told, expected = member(0), list[Positions](), list[dict[str, Position]]()

    for heartbeat in heartbeats:
        rank.name(heartbeat.communicators)
        told.append(Positions(rank, heartbeat))
        expected.append(eager(rank, heartbeat))

    for one, its in zip(told, expected, strict=True):
        assert one.completed() == {name: position.completed for name, position in its.items()}
        assert [one.equal(other) for other in told] == [its == others for others in expected]
    assert [list(one.by_communicator.items()) for one in told] == [list(its.items()) for its in expected]


@given(HEARTBEATS, HEARTBEATS, st.booleans())
def test_a_heartbeat_that_tells_the_same_word_for_word_changes_no_position(
    first: trace_pb2.Heartbeat, second: trace_pb2.Heartbeat, worked_out: bool
) -> None:
    rank = member(0)
    rank.name(first.communicators)
    positions, expected = Positions(rank, first), eager(rank, first)
    if worked_out:
        assert positions.by_communicator == expected
    rank.name(second.communicators)

    again = positions.told_again(rank, second)

    assert again == (not second.communicators and list(first.frontiers) == list(second.frontiers))
    assert positions.by_communicator == expected


@given(SEQUENCES)
def test_stalls_do_not_depend_on_when_positions_are_worked_out(sequence: list[Arrival]) -> None:
    assert stalls(sequence, eagerly=False) == stalls(sequence, eagerly=True)


@given(SEQUENCES)
def test_stalls_do_not_depend_on_whether_repeats_are_known(sequence: list[Arrival]) -> None:
    assert stalls(sequence, compared=True) == stalls(sequence)


def stalls(
    sequence: list[Arrival], *, eagerly: bool = False, compared: bool = False
) -> list[tuple[float, Stall | None]]:
    """After each heartbeat; compared: with each rank's last one before it is taken."""
    progress, members, now_ns, found = Progress(5.0), [member(rank) for rank in range(WORLD)], NS, []
    last: dict[int, trace_pb2.Heartbeat] = {}
    for arrival in sequence:
        rank, heartbeat, now_ns = arrival.rank, arrival.heartbeat, now_ns + arrival.after_seconds * NS
        members[rank].name(heartbeat.communicators)
        repeats = compared and rank in last and same_frontiers(heartbeat, last[rank])
        progress.beat(members[rank], heartbeat, now_ns, last[rank] if repeats else None)
        last[rank] = heartbeat
        if eagerly:
            progress.lags()
        found.append((progress.stalled_seconds, progress.stall()))
    return found


def test_frontiers_that_are_known_to_be_repeated_are_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, first, second = member(0), trace_pb2.Heartbeat(clock_ns=1), trace_pb2.Heartbeat(clock_ns=2)
    told = Positions(rank, first)
    monkeypatch.setattr(positions, "same_frontiers", lambda *_: pytest.fail("compared"))

    assert told.told_again(rank, second, repeated=first)


def test_a_heartbeat_that_tells_the_same_is_not_worked_out() -> None:
    rank = member(0)
    rank.name([trace_pb2.Communicator(index=1, id="tp:0-1", ranks=[0, 1])])
    frontier = trace_pb2.Frontier(communicator=1, enqueued=5, started=5, completed=4, peer=-1)
    beats = [trace_pb2.Heartbeat(clock_ns=n, frontiers=[frontier]) for n in range(2)]

    before, now = (Positions(rank, beat) for beat in beats)

    assert now.equal(before)
    assert now._known is None
    assert before._known is None
