"""Sends that are handed over later than they were posted."""

from __future__ import annotations

import threading
import time

import pytest

from megatronapp.trainer.pipeline.late_sends import LateSends


def test_what_is_due_earlier_is_sent_earlier_whichever_was_added_first() -> None:
    late, sent = LateSends[None](), list[str]()

    late.add(0.2, lambda: sent.append("later"))
    late.add(0.02, lambda: sent.append("earlier"))
    late.wait()

    assert sent == ["earlier", "later"]


def test_the_time_counts_from_when_a_device_has_made_what_is_sent() -> None:
    late, made, sent = LateSends[None](), threading.Event(), list[str]()

    late.add(0.0, lambda: sent.append("still being made"), made.is_set)
    late.add(0.02, lambda: sent.append("there"))
    while not sent:
        time.sleep(0.001)
    made.set()
    late.wait()

    assert sent == ["there", "still being made"]


def test_what_a_send_raises_is_raised_where_all_are_waited_for() -> None:
    late = LateSends[None]()

    def lost() -> None:
        raise ConnectionError("rank 1 is lost")

    late.add(0.0, lost)

    with pytest.raises(ConnectionError, match="rank 1 is lost"):
        late.wait()
    late.wait()  # it is told once


def test_its_thread_ends_when_nothing_is_left_and_comes_back() -> None:
    late = LateSends[int]()

    results = []
    for number in range(2):
        sent = late.add(0.0, lambda number=number: number)  # type: ignore[misc]
        late.wait()
        results.append(sent.result())
        for thread in threading.enumerate():
            if thread.name == "late-sends":
                thread.join(10)
                assert not thread.is_alive()

    assert results == [0, 1]
