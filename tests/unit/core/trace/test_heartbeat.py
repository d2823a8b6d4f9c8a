"""A heartbeat is refused for what it tells; of one on the wire the frontiers are read, and refused, by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatronapp.core.trace import limits
from megatronapp.core.trace.heartbeat import check_heartbeat, read_frontiers
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


def no_gpu(beat: trace_pb2.Heartbeat) -> None:
    beat.gpu.pcie_replays = limits.MAX_COUNT + 1


def no_phase(beat: trace_pb2.Heartbeat) -> None:
    beat.phase = limits.MAX_PHASE + 1  # type: ignore[assignment]


def no_stack(beat: trace_pb2.Heartbeat) -> None:
    beat.stack.text = "in step\r"


def never(beat: trace_pb2.Heartbeat) -> None:
    beat.unix_ns = -1


def no_split(beat: trace_pb2.Heartbeat) -> None:
    beat.evaluations.add(split="a\x1b[2J")


def no_control(beat: trace_pb2.Heartbeat) -> None:
    beat.control.interval = limits.MAX_TRACE_INTERVAL + 1


LIES: list[Spoil] = [
    too_far, too_long, unprintable, too_many_open, posted_never, one_more, no_step, no_activity, no_gpu, no_phase,
    no_stack,
]  # fmt: skip
NOT_READ: list[Spoil] = [no_memory, never, no_split, no_control]
"""Lies that who reads heartbeats on the wire does not see."""


def on_the_wire(beat: trace_pb2.Heartbeat) -> trace_pb2.SentHeartbeat:
    return trace_pb2.SentHeartbeat.FromString(beat.SerializeToString())


def test_a_heartbeat_that_can_be_true_is_accepted() -> None:
    check_heartbeat(heartbeat())
    check_heartbeat(on_the_wire(heartbeat()))


@pytest.mark.parametrize("spoil", [*LIES, *NOT_READ])
def test_a_lie_is_refused(spoil: Spoil) -> None:
    lie = heartbeat()
    spoil(lie)

    with pytest.raises(ImplausibleError):
        check_heartbeat(lie)


@pytest.mark.parametrize("spoil", LIES)
def test_a_lie_on_the_wire_is_refused_when_its_frontiers_are_read_at_the_latest(spoil: Spoil) -> None:
    lie = heartbeat()
    spoil(lie)
    with pytest.raises(ImplausibleError):
        read_whole(on_the_wire(lie))


def read_whole(sent: trace_pb2.SentHeartbeat) -> None:
    check_heartbeat(sent)
    read_frontiers(sent.frontiers)


def test_frontiers_on_the_wire_are_those_that_were_sent() -> None:
    beat = heartbeat()

    assert read_frontiers(on_the_wire(beat).frontiers) == list(beat.frontiers)


def test_more_frontiers_than_a_rank_can_have_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FRONTIERS", 3)

    with pytest.raises(ImplausibleError, match="frontiers"):
        check_heartbeat(trace_pb2.SentHeartbeat(frontiers=[b""] * 4))
