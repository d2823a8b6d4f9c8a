"""Hangs of whole jobs, from heartbeats alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from megatronapp.core.findings import Cause, Kind, State
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.patience import START_SECONDS
from megatronapp.v1 import trace_pb2
from tests.support.beating import SECOND, Beating


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
    assert (
        "has not entered backward_recv (backward of microbatch 5, step 20) of p2p:0-1 (rank 0 to rank 1)"
        in finding.summary
    )


def test_a_rank_of_which_nothing_was_ever_heard_is_told_and_not_accused() -> None:
    job = Beating(replicas=3)
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 21))

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.kind, finding.cause, finding.ranks) == (Kind.HANG, Cause.UNKNOWN, ())
    assert "the others wait for rank 2, of whom nothing was ever heard" in finding.summary


@pytest.mark.parametrize("activity", ["forward", "backward", "mlp_fc2", "experts"])
@pytest.mark.parametrize("share", [1.0, 0.05], ids=["a processor of its own", "twenty share one"])
def test_a_thread_that_computes_without_end_hangs_on_the_compute_side(share: float, activity: str) -> None:
    job = Beating()
    job.train(20)
    for second in range(8):
        used = int(second * SECOND * share)
        times = {"clock_ns": second * SECOND + 1, "thread_cpu_ns": used, "thread_wait_ns": second * SECOND - used}
        job.beat((20, 20), (21, 20), activity=activity, **times)

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


def test_a_stopped_process_is_named_however_long_the_pauses_of_its_job_are() -> None:
    job = Beating()
    for second in range(3):
        job.beat((second, second), (second, second))
    for _ in range(7):
        job.stop((3, 3), (4, 3), (4, 3), stopped=1)

    (finding,) = {f.id: f for f in job.said}.values()
    assert finding.ranks == (1,)


@pytest.mark.parametrize(
    ("entered", "started"),
    [
        pytest.param((21, 21), (21, 21), id="inside a collective that all are in"),
        pytest.param((21, 21), (21, 20), id="behind a collective that its library does not begin"),
        pytest.param((21, 21), (20, 21), id="where another's is not begun"),
        pytest.param((20, 20), (20, 20), id="where nobody is in anything"),
    ],
)
def test_a_stopped_process_is_named_wherever_it_stands_and_nobody_else(
    entered: tuple[int, int], started: tuple[int, int]
) -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.stop((20, 20), entered, started, stopped=1)

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.ranks, finding.cause) == ((1,), Cause.HOST_CPU)
    assert "Rank 1: its process is stopped." in finding.summary


def test_all_who_are_stopped_are_named() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20), stack=trace_pb2.Stack(state="stopped"))

    assert {f.ranks for f in job.said} == {(0,), (1,)}


def test_who_has_not_come_is_named_beside_one_that_waits_for_it_and_is_stopped() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.stop((20, 20), (20, 21), (20, 21), stopped=1)

    assert {f.ranks for f in job.said} == {(0,), (1,)}


def test_a_rank_that_is_not_heard_of_is_told_as_such() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.job.clock_ns += SECOND
        frontier = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=21, started=21, completed=20)
        job.said += job.engine.feed(job.job.heartbeat(0, 6, [frontier]))

    assert [f.ranks for f in {f.id: f for f in job.said}.values()] == [(1,)]
    assert "Nothing is heard of it any more." in job.said[0].summary


def test_who_died_is_told_at_once_and_pages_nobody_where_the_other_has_ended_over_it() -> None:
    job = Beating()
    job.train(21)
    inside = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=21, started=21, completed=20, operation="all_reduce")
    job.said += job.engine.feed(job.job.heartbeat(0, 6, [inside]))
    job.said += job.engine.feed(job.job.heartbeat(0, 6, [inside], closing=True))
    job.job.clock_ns += SECOND

    job.lose(1)

    (finding,) = job.said
    assert (finding.kind, finding.ranks, finding.page, finding.confidence) == (Kind.HANG, (1,), False, 0.85)
    assert finding.summary.startswith("The attempt has ended")
    assert "Its process has ended without a goodbye" in finding.summary
    assert "out of memory" in finding.advice


@pytest.mark.parametrize("enqueued", [20, 21])
def test_a_process_that_has_ended_is_named_as_such_wherever_its_device_stands(enqueued: int) -> None:
    job = Beating()
    job.train(20)
    waits, stood = (
        trace_pb2.Frontier(communicator=1, peer=-1, enqueued=own, started=start, completed=20, operation="all_reduce")
        for own, start in ((21, 21), (enqueued, 20))
    )
    for rank, frontier in enumerate([waits, stood]):
        job.said += job.engine.feed(job.job.heartbeat(rank, 6, [frontier]))
    job.job.clock_ns += SECOND

    job.lose(1)
    for _ in range(9):
        job.job.clock_ns += SECOND
        job.said += job.engine.feed(job.job.heartbeat(0, 6, [waits]))

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.ranks, finding.cause, finding.page) == ((1,), Cause.HOST_CPU, True)
    assert "Its process has ended without a goodbye" in finding.summary
    assert "its device does not come to it" not in finding.summary
    assert "out of memory" in finding.advice
