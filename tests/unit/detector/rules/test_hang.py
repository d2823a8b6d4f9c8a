"""Who holds everybody up, from frontiers and heartbeats alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.engine import Engine
from megatronapp.detector.patience import START_SECONDS
from megatronapp.detector.signals.frontier import Frontier, Position, Side, _circles, _reached, blame
from megatronapp.v1 import trace_pb2
from tests.support.simulated import CPU, Job, Layout

SECOND = 1_000_000_000
GROUP = {"dp:0-1": (0, 1), "dp:2-3": (2, 3), "p2p:0-2": (0, 2), "p2p:1-3": (1, 3)}


def test_a_rank_that_never_entered_is_blamed_on_its_host() -> None:
    frontiers = {0: {"dp:0-1": Position(7, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(6, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side, found.sequence, found.waiting) == (1, Side.HOST, 7, (0,))


def test_a_rank_whose_device_does_not_come_to_it_is_blamed_on_its_device() -> None:
    frontiers = {0: {"dp:0-1": Position(9, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(9, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side) == (1, Side.DEVICE)


def test_waiting_is_walked_back_over_p2p_to_the_first_blocker() -> None:
    frontiers = {
        0: {"p2p:0-2": Position(4, 4, 4), "dp:0-1": Position(2, 2, 2)},
        1: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        2: {"p2p:0-2": Position(5, 5, 4, "forward_recv"), "dp:2-3": Position(2, 2, 2)},
        3: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
    }

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.waiting) == (0, (1, 2, 3))


def test_two_ranks_that_stopped_are_both_named() -> None:
    frontiers = {
        0: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        1: {"dp:0-1": Position(2, 2, 2)},
        2: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
        3: {"dp:2-3": Position(2, 2, 2)},
    }

    assert [found.rank for found in blame(frontiers, GROUP)] == [1, 3]


def test_an_operation_that_all_are_in_is_the_networks() -> None:
    frontiers = {r: {"dp:0-1": Position(3, 3, 2, "all_reduce")} for r in (0, 1)}

    assert {found.side for found in blame(frontiers, GROUP)} == {Side.NETWORK}


A, B, C = ((12, MessageId(Direction.FORWARD, microbatch).pack()) for microbatch in range(3))
PAIR = {"p2p:0-1": (0, 1)}


def test_a_message_that_the_other_end_never_posted_is_told_from_one_that_is_there_by_its_name() -> None:
    """The sender is in B, the receiver posted A and C: by numbers both are in their second message."""
    frontiers = {
        0: {"p2p:0-1": Position(2, 2, 1, "forward_send", open=(B,))},
        1: {"p2p:0-1": Position(1, 1, 1)},
    }
    unnamed = {rank: {"p2p:0-1": f["p2p:0-1"]._replace(open=())} for rank, f in frontiers.items()}

    (found,) = blame(frontiers, PAIR)

    assert (found.rank, found.operation, found.message) == (1, "forward_recv", B)
    assert [b.rank for b in blame(unnamed, PAIR)] == [1]  # an older sender


def test_equal_numbers_do_not_hide_that_two_ends_wait_for_each_others_messages() -> None:
    frontiers = {
        0: {"p2p:0-1": Position(2, 2, 1, "forward_send", open=(B,)), "dp:0-1": Position(3, 3, 3)},
        1: {"p2p:0-1": Position(2, 2, 1, "forward_recv", open=(C,)), "dp:0-1": Position(3, 3, 3)},
        2: {"p2p:1-2": Position(1, 1, 0, "forward_recv", open=(A,))},
    }
    members = PAIR | {"p2p:1-2": (1, 2), "dp:0-1": (0, 1)}
    unnamed = {r: {c: p._replace(open=()) for c, p in f.items()} for r, f in frontiers.items()}

    # Rank 0 sends B, which rank 1 has not posted, and rank 1 waits for C: they wait for each other, and nobody else.
    assert {(b.side, b.circle) for b in blame(frontiers, members)} == {(Side.CIRCULAR, (0, 1))}
    assert [b.rank for b in blame(unnamed, members)] == [1]


WORLDS = {"dp:0-1": (0, 1), "tp:0-1": (0, 1), "p2p:0-1": (0, 1), "p2p:1-0": (1, 0), "dp:0-2": (0, 2)}
CROSSED = {
    0: {"dp:0-1": Position(3, 3, 2, "all_reduce"), "tp:0-1": Position(8, 8, 8)},
    1: {"dp:0-1": Position(2, 2, 2), "tp:0-1": Position(9, 9, 8, "all_gather")},
    2: {"dp:0-2": Position(4, 4, 3, "all_reduce")},
}
IN_THEM = {0: "all_reduce", 1: "all_gather", 2: "all_reduce"}


def sides(
    frontiers: Mapping[int, Frontier], activities: Mapping[int, str], idle: frozenset[int] = frozenset()
) -> set[tuple[Side, tuple[int, ...]]]:
    return {(b.side, b.circle) for b in blame(frontiers, WORLDS, idle, activities)}


def test_ranks_whose_threads_wait_in_collectives_of_different_order_are_in_a_deadlock() -> None:
    """Rank 2 waits for one of them, and is not in it."""
    found = blame(CROSSED, WORLDS, activities=IN_THEM)

    told = [(b.side, b.circle, b.waiting, b.rank, b.communicator, b.operation, b.sequence) for b in found]
    assert told == [
        (Side.DEADLOCK, (0, 1), (0,), 1, "dp:0-1", "all_reduce", 3),
        (Side.DEADLOCK, (0, 1), (1,), 0, "tp:0-1", "all_gather", 9),
    ]


def test_ranks_that_wait_for_each_others_messages_are_in_a_deadlock() -> None:
    """Both receive before they send."""
    frontiers = {
        0: {"p2p:1-0": Position(4, 4, 3, "backward_recv", 1, False, open=(A,))},
        1: {"p2p:0-1": Position(7, 7, 6, "forward_recv", 0, False, open=(B,))},
    }

    found = blame(frontiers, WORLDS, activities={0: "backward_recv", 1: "forward_recv"})

    assert [(b.side, b.rank, b.waiting, b.message) for b in found] == [
        (Side.DEADLOCK, 1, (0,), A),
        (Side.DEADLOCK, 0, (1,), B),
    ]


@pytest.mark.parametrize(
    "activities",
    [
        pytest.param({}, id="not told"),
        pytest.param(IN_THEM | {0: ""}, id="between two spans"),
        pytest.param(IN_THEM | {0: "data"}, id="it stands elsewhere, and the operation is asynchronous"),
    ],
)
def test_a_circle_in_which_a_thread_may_stand_elsewhere_is_no_deadlock(activities: dict[int, str]) -> None:
    assert sides(CROSSED, activities) == {(Side.CIRCULAR, (0, 1))}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"p2p:0-1": Position(4, 4, 3, "all_reduce")}, id="another of that name"),
        pytest.param({"dp:0-1": Position(5, 3, 2, "all_reduce")}, id="later ones of it outstanding"),
    ],
)
def test_which_operation_the_thread_waits_in_has_to_be_plain(more: dict[str, Position]) -> None:
    assert sides(CROSSED | {0: CROSSED[0] | more}, IN_THEM) == {(Side.CIRCULAR, (0, 1))}


def test_what_both_ends_have_posted_is_the_networks_also_where_threads_wait_in_it() -> None:
    frontiers = {
        0: {"p2p:0-1": Position(4, 4, 3, "forward_send", 1, True, open=(A,))},
        1: {"p2p:0-1": Position(4, 4, 3, "forward_recv", 0, False, open=(A,))},
    }

    assert sides(frontiers, {0: "forward_send", 1: "forward_recv"}) == {(Side.NETWORK, ())}


def test_a_rank_that_is_silent_is_in_no_deadlock() -> None:
    assert sides(CROSSED, IN_THEM, frozenset({1})) == {(Side.DEVICE, ())}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_circles_are_the_ranks_that_reach_each_other(pairs: list[tuple[int, int]]) -> None:
    ahead: dict[int, set[int]] = {}
    for waiter, other in pairs:
        ahead.setdefault(waiter, set()).add(other)
    reached = {rank: _reached(rank, ahead) for rank in range(10)}

    expected = {
        frozenset(other for other in reached[rank] if rank in reached[other])
        for rank in range(10)
        if rank in reached[rank]
    }

    assert {frozenset(circle) for circle in _circles(ahead)} == expected


def test_a_message_on_its_way_is_the_networks() -> None:
    """The sender is done with all it had to send, the receiver has one of them open."""
    frontiers = {
        0: {"p2p:0-1": Position(5, 5, 5)},
        1: {"p2p:0-1": Position(5, 5, 3, "forward_recv", open=(B,))},
    }

    assert {(b.rank, b.side, b.message) for b in blame(frontiers, PAIR)} == {(1, Side.NETWORK, B)}


@given(
    orders=st.tuples(*[st.permutations(range(8))] * 2),
    through=st.sets(st.integers(0, 7), max_size=6),
    data=st.data(),
)
def test_whoever_did_not_post_a_message_is_blamed_in_whatever_order_the_others_were_posted_and_ended(
    orders: tuple[list[int], list[int]], through: set[int], data: st.DataObject
) -> None:
    """Of eight messages some are through; of the others one end posted one less than the other."""
    open_ = sorted(set(range(8)) - through)
    missing, idle = data.draw(st.sampled_from(open_)), data.draw(st.sampled_from([0, 1]))

    def position(rank: int) -> Position:
        posted = [m for m in orders[rank] if rank != idle or m != missing]
        names = tuple((3, MessageId(Direction.FORWARD, m).pack()) for m in posted if m not in through)
        completed = next((n for n, m in enumerate(posted) if m not in through), len(posted))
        return Position(len(posted), len(posted), completed, "forward", open=names)

    (found, *others) = blame({rank: {"p2p:0-1": position(rank)} for rank in (0, 1)}, PAIR)

    assert (found.rank, found.message, others) == (idle, (3, MessageId(Direction.FORWARD, missing).pack()), [])


class Beating:
    """A job of replicas whose heartbeats the test writes: of the first two, unless it says otherwise."""

    def __init__(self, replicas: int = 2) -> None:
        self.job = Job(Layout(pp=1, dp=replicas), CPU, on_cpu=True)
        self.engine = Engine(self.job.run, "test/simulated", 1)
        self.said: list[Finding] = []
        for hello in self.job.hellos():
            self.engine.feed(hello)

    def beat(self, done: tuple[int, int], entered: tuple[int, int], **fields: object) -> None:
        self.job.clock_ns += SECOND
        for rank in (0, 1):
            frontier = trace_pb2.Frontier(
                communicator=1, peer=-1, enqueued=entered[rank], started=entered[rank], completed=done[rank]
            )
            beat = self.job.heartbeat(rank, 1 + max(done) // 4, [frontier], **fields)
            self.said += self.engine.feed(beat)

    def train(self, seconds: int) -> None:
        for second in range(seconds):
            self.beat((second, second), (second, second))

    def lose(self, rank: int) -> None:
        identity = self.job.heartbeat(rank, 6, []).identity
        gone = trace_pb2.RankMessage(identity=identity, received_unix_ns=self.job.clock_ns, lost=True)
        self.said += self.engine.feed(gone)


def test_a_hang_is_named_within_ten_seconds_and_resolved_when_things_move() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20))

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.HANG, Cause.HOST_CPU, (1,), True)
    job.beat((21, 21), (21, 21))
    assert job.said[-1].state is State.RESOLVED


def test_ranks_that_tell_of_an_ordinary_step_are_waited_for_as_in_any_step() -> None:
    job = Beating()
    for second in range(20):
        job.beat((second, second), (second, second), phase=trace_pb2.PHASE_STEP)
    for _ in range(8):
        job.beat((20, 20), (21, 20), phase=trace_pb2.PHASE_STEP)

    assert {f.ranks for f in job.said} == {(1,)}


def test_a_hang_names_the_message_that_was_never_posted() -> None:
    job = Beating()
    job.train(20)
    posted = MessageId(Direction.BACKWARD, 5).pack()
    sending = trace_pb2.Frontier(
        enqueued=9,
        started=9,
        completed=7,
        peer=1,
        sending=True,
        operation="backward_send",
        open=[trace_pb2.OpenMessage(step=20, message=posted, posted_at_ns=1)],
    )
    receiving = trace_pb2.Frontier(enqueued=8, started=8, completed=8, peer=0)
    for _ in range(8):
        job.job.clock_ns += SECOND
        for rank, frontier in enumerate([sending, receiving]):
            job.said += job.engine.feed(job.job.heartbeat(rank, 20, [frontier]))

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.kind, finding.ranks) == (Kind.HANG, (1,))
    assert "has not entered backward_recv (backward of microbatch 5, step 20) of p2p:0-1" in finding.summary


def test_a_thread_that_computes_without_end_hangs_on_the_compute_side() -> None:
    job = Beating()
    job.train(20)
    for second in range(8):
        used = second * SECOND
        job.beat((20, 20), (21, 20), activity="forward", clock_ns=second * SECOND + 1, thread_cpu_ns=used)

    assert {(f.cause, f.ranks) for f in job.said} == {(Cause.COMPUTE, (1,))}


def test_silence_of_all_ranks_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    job.job.clock_ns += 600 * SECOND
    job.beat((20, 20), (20, 20))
    job.engine.tick(job.job.clock_ns + 600 * SECOND)

    assert job.said == []


def test_a_long_checkpoint_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    for _ in range(60):
        job.beat((20, 20), (20, 20), phase=trace_pb2.PHASE_CHECKPOINT)

    assert job.said == []


FORWARD, BACKWARD = (MessageId(way, 0).pack() for way in (Direction.FORWARD, Direction.BACKWARD))
CROSSING = {0: ("backward_recv", BACKWARD), 1: ("forward_recv", FORWARD)}


def deadlocked(job: Beating, activities: tuple[str, str], **used: object) -> list[Finding]:
    """Both ranks wait for a message that the other has not posted; `used`: what grows on rank 0."""
    job.train(20)
    stand(job, (0, 1), 8, activities, **used)
    return list({f.id: f for f in job.said}.values())


def stand(job: Beating, ranks: tuple[int, ...], seconds: int, activities: tuple[str, str], **used: object) -> None:
    """These of the ranks that wait for each other's messages are heard; a third one waits for the first."""
    for second in range(seconds):
        job.job.clock_ns += SECOND
        for rank, (name, packed) in ((rank, CROSSING[rank]) for rank in ranks if rank in CROSSING):
            waits = trace_pb2.Frontier(
                enqueued=5,
                started=5,
                completed=4,
                peer=1 - rank,
                operation=name,
                open=[trace_pb2.OpenMessage(step=6, message=packed)],
            )
            told = {"activity": activities[rank], "clock_ns": second * SECOND + 1}
            told |= dict.fromkeys(used, second * SECOND) if rank == 0 else {}
            job.said += job.engine.feed(job.job.heartbeat(rank, 6, [waits], **told))
        if 2 in ranks:
            job.said += job.engine.feed(job.job.heartbeat(2, 6, []))


def test_two_ranks_that_wait_for_each_others_messages_are_told_as_a_deadlock() -> None:
    (finding,) = deadlocked(Beating(), ("backward_recv", "forward_recv"))

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.HANG, Cause.DEADLOCK, (0, 1), True)
    assert finding.summary == (
        "Nothing has moved in step 6. Ranks 0, 1 wait for each other: "
        "rank 0 for rank 1 to enter backward_send (backward of microbatch 0, step 6) of p2p:1-0, "
        "rank 1 for rank 0 to enter forward_send (forward of microbatch 0, step 6) of p2p:0-1. "
        "Its longest usual pause is 1.0 s."
    )


def test_who_is_ended_after_a_deadlock_was_told_takes_nothing_back() -> None:
    """A watchdog aborts the ranks one after the other, while a third one is still heard."""
    job = Beating(replicas=3)
    job.train(20)
    stand(job, (0, 1, 2), 8, ("backward_recv", "forward_recv"))
    (told,) = job.engine.ledger.open
    for ended, left in ((0, (1, 2)), (1, (2,))):
        job.lose(ended)
        stand(job, left, 8, ("backward_recv", "forward_recv"))

    (after,) = job.engine.ledger.open
    assert (told.cause, told.ranks) == (Cause.DEADLOCK, (0, 1))
    assert (after.id, after.cause, after.ranks) == (told.id, Cause.DEADLOCK, (0, 1))
    assert {f.id for f in job.said} == {told.id}


@pytest.mark.parametrize("ends", ["falls silent", "says goodbye"])
def test_a_blamed_rank_that_ends_later_stays_the_one_to_blame(ends: str) -> None:
    """Rank 1 has not entered what rank 0 is in; what becomes of rank 0, which waits, tells nothing of that."""
    job = Beating(replicas=3)
    job.train(20)
    waits = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=21, started=21, completed=20)
    stands = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=20, started=20, completed=20)

    def beats(seconds: int, frontiers: Mapping[int, trace_pb2.Frontier], **fields: object) -> None:
        for _ in range(seconds):
            job.job.clock_ns += SECOND
            for rank, frontier in frontiers.items():
                job.said += job.engine.feed(job.job.heartbeat(rank, 6, [frontier], **fields))

    beats(8, {0: waits, 1: stands, 2: waits})
    (told,) = job.engine.ledger.open
    job.lose(0)
    beats(1, {1: stands}, closing=ends == "says goodbye")
    beats(8, {2: waits})

    assert told.ranks == (1,)
    assert [(f.id, f.ranks) for f in job.engine.ledger.open] == [(told.id, (1,))]


def test_a_circle_whose_threads_are_not_known_to_wait_names_no_cause() -> None:
    (finding,) = deadlocked(Beating(), ("data", "forward_recv"))

    assert (finding.cause, finding.ranks, finding.confidence) == (Cause.UNKNOWN, (0, 1), 0.5)
    assert "it can't be told whether one of them stopped elsewhere before" in finding.summary


def test_a_rank_in_a_circle_that_computes_without_end_is_blamed() -> None:
    (finding,) = deadlocked(Beating(), ("forward", "forward_recv"), thread_cpu_ns=True)

    assert (finding.cause, finding.ranks) == (Cause.COMPUTE, (0,))


def test_a_job_that_ends_in_good_order_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    for _ in range(60):
        job.beat((20, 20), (20, 20), closing=True)

    assert job.said == []


def test_who_is_left_standing_long_after_another_has_ended_hangs() -> None:
    job = Beating()
    job.train(20)
    waits = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=21, started=21, completed=20)

    def stand_alone(seconds: float) -> None:
        for _ in range(int(seconds)):
            job.job.clock_ns += SECOND
            job.said += job.engine.feed(job.job.heartbeat(0, 6, [waits]))

    job.beat((20, 20), (21, 20))
    job.said += job.engine.feed(job.job.heartbeat(1, 6, [], closing=True))
    stand_alone(START_SECONDS - 60)
    assert job.said == [], "the others may still be writing"
    stand_alone(120)

    assert {(f.kind, f.page) for f in job.said} == {(Kind.HANG, True)}


def test_a_rank_that_died_is_blamed() -> None:
    job = Beating()
    job.train(20)
    lost = job.job.heartbeat(1, 5, [])
    job.engine.feed(trace_pb2.RankMessage(identity=lost.identity, received_unix_ns=job.job.clock_ns, lost=True))
    for _ in range(9):
        job.job.clock_ns += SECOND
        frontier = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=20, started=20, completed=19)
        job.said += job.engine.feed(job.job.heartbeat(0, 5, [frontier]))

    assert {(f.kind, f.ranks) for f in job.said} == {(Kind.HANG, (1,))}
