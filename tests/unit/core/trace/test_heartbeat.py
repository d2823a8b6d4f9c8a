"""A heartbeat that tells what another one told is plausible if that one was, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatronapp.core.trace import limits
from megatronapp.core.trace.heartbeat import check_heartbeat
from megatronapp.core.trace.ranges import ImplausibleError
from megatronapp.v1 import trace_pb2


def heartbeat() -> trace_pb2.Heartbeat:
    beat = trace_pb2.Heartbeat(clock_ns=5, step=1, activity="forward", phase=trace_pb2.PHASE_STEP)
    pair = beat.frontiers.add(communicator=1, enqueued=9, started=8, completed=7, peer=2, operation="forward_send")
    pair.open.add(step=1, message=1)
    beat.frontiers.add(communicator=2, enqueued=4, started=4, completed=4, peer=-1)
    return beat


def too_far(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers[1].completed = 1 << 63


def too_long(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers[0].operation = "x" * (limits.MAX_NAME + 1)


def unprintable(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers[0].operation = "a\x1b[2J"


def too_many_open(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers[0].open.extend([trace_pb2.OpenMessage(step=1)] * limits.MAX_OPEN_MESSAGES)


def posted_never(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers[0].open[0].posted_at_ns = limits.MAX_TIME_NS + 1


def one_more(beat: trace_pb2.Heartbeat) -> None:
    beat.frontiers.add(communicator=limits.MAX_COMMUNICATORS + 1)


def no_step(beat: trace_pb2.Heartbeat) -> None:
    beat.step = limits.MAX_STEP + 1


def no_memory(beat: trace_pb2.Heartbeat) -> None:
    beat.memory.host_bytes = limits.MAX_COUNT + 1


def no_activity(beat: trace_pb2.Heartbeat) -> None:
    beat.activity = "a\x1b[2J"


Spoil = Callable[[trace_pb2.Heartbeat], None]
LIES: list[Spoil] = [
    too_far, too_long, unprintable, too_many_open, posted_never, one_more, no_step, no_memory, no_activity
]  # fmt: skip


def test_a_heartbeat_that_tells_the_same_again_is_plausible() -> None:
    assert not check_heartbeat(heartbeat())
    assert check_heartbeat(heartbeat(), heartbeat())


@pytest.mark.parametrize("place", [0, 1])
def test_a_heartbeat_of_which_one_frontier_has_moved_repeats_no_other(place: int) -> None:
    moved = heartbeat()
    moved.frontiers[place].enqueued += 1

    assert not check_heartbeat(moved, heartbeat())


@pytest.mark.parametrize("spoil", LIES)
def test_a_lie_is_refused_whatever_was_told_before(spoil: Spoil) -> None:
    lie = heartbeat()
    spoil(lie)

    for known in (None, heartbeat(), trace_pb2.Heartbeat()):
        with pytest.raises(ImplausibleError):
            check_heartbeat(lie, known)
