"""Ranks that wait for each other, from heartbeats alone."""

from __future__ import annotations

from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.rules.hang import detect
from megatronapp.detector.signals.frontier import Blame, Side
from megatronapp.detector.stall import Stall
from megatronapp.v1 import trace_pb2
from tests.support.beating import SECOND, Beating

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
        "rank 0 for rank 1 to enter backward_send (backward of microbatch 0, step 6) of p2p:1-0 (rank 1 to rank 0), "
        "rank 1 for rank 0 to enter forward_send (forward of microbatch 0, step 6) of p2p:0-1 (rank 0 to rank 1). "
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


def test_a_circle_whose_threads_are_not_known_to_wait_names_no_cause() -> None:
    (finding,) = deadlocked(Beating(), ("data", "forward_recv"))

    assert (finding.cause, finding.ranks, finding.confidence) == (Cause.UNKNOWN, (0, 1), 0.5)
    assert "it can't be told whether one of them stopped elsewhere before" in finding.summary


def test_a_rank_in_a_circle_that_computes_without_end_is_blamed() -> None:
    (finding,) = deadlocked(Beating(), ("forward", "forward_recv"), thread_cpu_ns=True)

    assert (finding.cause, finding.ranks) == (Cause.COMPUTE, (0,))


def test_members_of_whom_nobody_can_tell_who_is_right_are_told_as_one_event() -> None:
    blamed = (
        Blame(2, Side.PROGRAM, "tp:2-3", "all_gather of 8 float32", 7, (), None, (2, 3), "all_reduce of 8 float32"),
        Blame(3, Side.PROGRAM, "tp:2-3", "all_reduce of 8 float32", 7, (), None, (2, 3), "all_gather of 8 float32"),
    )

    (told,) = detect(Stall(9.0, 6, blamed, {}), link_is_known=False)

    assert (told.cause, told.ranks, told.pages) == (Cause.DEADLOCK, (2, 3), True)
    assert (
        "Ranks 2, 3 call different operations as operation 7 of tp:2-3: rank 2 all_gather of 8 float32, "
        "rank 3 all_reduce of 8 float32; it can't be told which of them is right."
    ) in told.summary


def test_of_a_circle_only_those_are_named_of_whom_one_is_out_of_order() -> None:
    blamed = tuple(
        Blame((rank + 1) % 3, Side.DEADLOCK, "dp:0-1-2", "all_reduce", 7, (rank,), None, (0, 1, 2), suspects=(0, 2))
        for rank in range(3)
    )

    (told,) = detect(Stall(9.0, 6, blamed, {}), link_is_known=False)

    assert told.ranks == (0, 2)
    assert told.summary.startswith(
        "Nothing has moved in step 6. Ranks 0, 1, 2 wait for one another: rank 0 for rank 1 "
    )
    assert "; one of ranks 0, 2 runs these in another order than all others." in told.summary


def test_of_a_circle_of_a_thousand_the_text_names_some_and_counts_the_others() -> None:
    ring = tuple(range(1024))
    blamed = tuple(
        Blame((rank + 1) % 1024, Side.DEADLOCK, "p2p:0-1", "forward_recv", 7, (rank,), None, ring) for rank in ring
    )

    (told,) = detect(Stall(9.0, 6, blamed, {}), link_is_known=False)

    assert told.ranks == ring
    assert "14, 15 and 1008 others wait for one another" in told.summary
    assert len(told.summary) < 1000
