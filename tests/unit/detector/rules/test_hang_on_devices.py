"""Hangs of jobs of which a device stands in a kernel that never ends, as two GPUs have shown them."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.findings import Cause, Finding
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.v1 import trace_pb2
from tests.support.beating import SECOND, Beating

STEP = 6
MARK_NS, POSTED_NS = 1_000, 2_000
FORWARD, BACKWARD = (MessageId(direction, 0).pack() for direction in (Direction.FORWARD, Direction.BACKWARD))


def standing(frontiers: Sequence[Sequence[trace_pb2.Frontier]], unpassed_mark_ns: Sequence[int]) -> Finding:
    """What is told of two ranks that train, then tell this for eight seconds."""
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.job.clock_ns += SECOND
        for rank in (0, 1):
            beat = job.job.heartbeat(rank, STEP, list(frontiers[rank]), unpassed_mark_ns=unpassed_mark_ns[rank])
            job.said += job.engine.feed(beat)
    (finding,) = {f.id: f for f in job.said}.values()
    return finding


def collective(enqueued: int, started: int, completed: int) -> trace_pb2.Frontier:
    return trace_pb2.Frontier(
        communicator=1,
        peer=-1,
        enqueued=enqueued,
        started=started,
        completed=completed,
        enqueued_at_ns=POSTED_NS,
        operation="all_reduce",
    )


def message(peer: int, name: int, posted_at_ns: int, *, sending: bool) -> trace_pb2.Frontier:
    opened = trace_pb2.OpenMessage(step=STEP, message=name, posted_at_ns=posted_at_ns)
    return trace_pb2.Frontier(
        enqueued=9, started=9, completed=8, peer=peer, sending=sending, operation="message", open=[opened]
    )


def test_a_rank_whose_host_can_launch_no_more_hangs_on_its_device() -> None:
    waits, stands = [collective(72, 71, 70)], [collective(70, 70, 70)]

    finding = standing([waits, stands], unpassed_mark_ns=[POSTED_NS + 1, MARK_NS])

    assert (finding.ranks, finding.cause) == ((1,), Cause.COMPUTE)
    assert "does not come to all_reduce 71" in finding.summary
    assert "its device stands in work that was launched before" in finding.summary


def test_of_two_stages_that_have_posted_all_their_messages_the_one_hangs_whose_device_stands() -> None:
    first = [message(1, FORWARD, POSTED_NS, sending=True), message(1, BACKWARD, POSTED_NS, sending=False)]
    second = [message(0, FORWARD, POSTED_NS, sending=False), message(0, BACKWARD, POSTED_NS, sending=True)]

    finding = standing([first, second], unpassed_mark_ns=[POSTED_NS + 1, MARK_NS])

    assert (finding.ranks, finding.cause) == ((1,), Cause.COMPUTE)
    assert "waiting for it: 0" in finding.summary


def test_where_no_device_is_known_to_stand_both_ends_are_told_as_before() -> None:
    first, second = ([message(1 - rank, FORWARD, POSTED_NS, sending=rank == 0)] for rank in (0, 1))

    finding = standing([first, second], unpassed_mark_ns=[POSTED_NS + 1, POSTED_NS + 1])

    assert finding.ranks == (0, 1)
    assert finding.cause is not Cause.COMPUTE
