"""Events on their way to a gateway that may come back without those that it had."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.agent.event_log import EventLog
from megatronapp.v1 import scope_pb2


def event(step: int) -> scope_pb2.ScopeEvent:
    return scope_pb2.ScopeEvent(series=scope_pb2.ScopeSeries(name="loss", step=step))


def filled(count: int, **limits: int) -> EventLog:
    log = EventLog(**limits)
    for step in range(1, count + 1):
        log.add(event(step))
    return log


def sent(log: EventLog, most: int = 1000) -> list[int]:
    """Numbers of what goes out; each is the event's own step."""
    found = []
    while len(found) < most and (message := log.next()) is not None:
        assert message.event.series.step == message.event_number
        found.append(message.event_number)
    return found


@given(count=st.integers(0, 30), before=st.integers(0, 30), received=st.integers(0, 40), size=st.integers(1, 30))
def test_a_gateway_is_told_all_that_it_lacks_and_is_here(count: int, before: int, received: int, size: int) -> None:
    log = filled(count, max_events=size)
    sent(log, before)

    log.begin(received)

    assert sent(log) == list(range(max(min(received, count), count - size) + 1, count + 1))
    assert not log.waits


def test_what_was_never_sent_and_is_kept_no_more_is_counted() -> None:
    log = filled(3, max_events=3)
    sent(log, 2)

    for step in range(4, 8):
        log.add(event(step))

    assert log.lost == 2  # 3 and 4; 1 and 2 were sent
    assert sent(log) == [5, 6, 7]


def test_large_events_do_not_fill_the_memory() -> None:
    log = filled(100, max_bytes=200)

    assert 1 < len(sent(log)) < 20


def test_the_newest_is_kept_however_large_it_is() -> None:
    assert sent(filled(3, max_bytes=1)) == [3]
