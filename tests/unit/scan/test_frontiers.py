"""Frontiers of the native recorder: what was enqueued, started, completed, and which messages are open."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

from megatronapp.scan import Recorder
from tests.support.segment import Frontier, SegmentReader

SEND, REDUCE = 2, 3


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(bytes(5), bytes(5), None, 0, 4096)
    yield made
    made.close(5.0)


def frontier_of(recorder: Recorder, track: int) -> Frontier:
    return SegmentReader(recorder.fd).frontiers()[track]


def test_a_pair_keeps_its_entry(recorder: Recorder) -> None:
    tracks = [recorder.track(1, -1, False), recorder.track(2, 3, True), recorder.track(2, 3, False)]

    assert tracks == [0, 1, 2]
    assert recorder.track(2, 3, True) == 1
    entries = SegmentReader(recorder.fd).frontiers()
    assert [(entry.communicator, entry.peer, entry.sending) for entry in entries] == [(1, -1, 0), (2, 3, 1), (2, 3, 0)]
    assert [entry.operation for entry in entries] == [-1, -1, -1]


def test_operations_are_counted_from_handing_over_to_completion(recorder: Recorder) -> None:
    track = recorder.track(1, -1, False)
    before = time.monotonic_ns()

    assert [recorder.enqueue(track, REDUCE, 1, 0) for _ in range(3)] == [1, 2, 3]
    recorder.started(track)
    entry = frontier_of(recorder, track)
    assert (entry.enqueued, entry.started, entry.completed, entry.operation) == (3, 1, 0, REDUCE)
    assert before <= entry.enqueued_at_ns <= time.monotonic_ns()
    assert [(called.step, called.message) for called in entry.messages] == [(1, 0)]  # the oldest's alone

    recorder.complete(track, 1)
    recorder.complete_at(track, 2, recorder.mark())
    entry = frontier_of(recorder, track)
    assert (entry.enqueued, entry.started, entry.completed) == (3, 2, 2)
    assert entry.completed_at_ns >= entry.enqueued_at_ns


def test_where_a_communicators_operations_are_all_through_the_newest_is_told(recorder: Recorder) -> None:
    track = recorder.track(1, -1, False)
    tickets = [recorder.enqueue(track, REDUCE + number, 10 + number, 20 + number) for number in range(3)]

    for ticket in reversed(tickets):
        recorder.complete(track, ticket)

    entry = frontier_of(recorder, track)
    assert (entry.completed, entry.open, entry.operation) == (3, 0, REDUCE + 2)
    assert [(called.step, called.message) for called in entry.messages] == [(12, 22)]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), count=st.integers(1, 40))
def test_messages_complete_in_any_order_and_the_oldest_open_ones_are_told(data: st.DataObject, count: int) -> None:
    recorder = Recorder(bytes(5), bytes(5), None, 0, 4096)
    track = recorder.track(2, 1, True)
    tickets = [recorder.enqueue(track, SEND, 10 + i, 1000 + i) for i in range(count)]
    completed = data.draw(st.lists(st.sampled_from(tickets), max_size=count))

    for ticket in completed:
        recorder.complete(track, ticket)

    left = [ticket for ticket in tickets if ticket not in completed]
    entry = frontier_of(recorder, track)
    assert (entry.enqueued, entry.completed, entry.open) == (count, left[0] - 1 if left else count, len(left))
    assert entry.operation == (SEND if left else -1)
    assert [(open_.step, open_.message) for open_ in entry.messages] == [(9 + t, 999 + t) for t in left[:16]]
    assert entry.completed <= entry.started <= entry.enqueued
    recorder.close(1.0)


def test_threads_share_a_track(recorder: Recorder) -> None:
    track, each = recorder.track(2, 1, True), 300

    def run(seed: int) -> None:
        chance = random.Random(seed)
        tickets = [recorder.enqueue(track, SEND, 1, seed) for _ in range(each)]
        for ticket in chance.sample(tickets, each - 1):
            recorder.complete(track, ticket)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    entry = frontier_of(recorder, track)
    assert (entry.enqueued, entry.open) == (4 * each, 4)
    assert sorted(open_.message for open_ in entry.messages) == [1, 2, 3, 4]


def test_pairs_beyond_the_table_are_counted_and_not_told(recorder: Recorder) -> None:
    entries = SegmentReader(recorder.fd).header.entries
    tracks = [recorder.track(1, peer, True) for peer in range(entries + 3)]

    assert tracks[-1] == entries + 2
    assert recorder.enqueue(tracks[-1], SEND, 1, 1) == 1
    recorder.complete(tracks[-1], 1)
    assert len(SegmentReader(recorder.fd).frontiers()) == entries
