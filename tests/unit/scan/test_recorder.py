"""What the native recorder writes into its segment on a CPU rank."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

from megatronapp.scan import COLUMNS, Recorder
from tests.support.segment import FRAME, ROWS, SegmentReader, Step

OUTER, WORK, SEND, REDUCE, GARBAGE = range(5)
BLOCKING = bytes([0, 0, 1, 1, 1])


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(bytes(5), BLOCKING, None, 0, 1 << 22)
    yield made
    made.close(5.0)


@pytest.fixture
def reader(recorder: Recorder) -> SegmentReader:
    return SegmentReader(recorder.fd)


def until(reached: Callable[[], list[Step]]) -> list[Step]:
    deadline = time.monotonic() + 30
    while not (value := reached()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return value


def end_step(recorder: Recorder, reader: SegmentReader, number: int = 1) -> Step:
    recorder.end_step((number,))
    (step,) = until(lambda: reader.steps(COLUMNS))
    return step


def test_the_header_says_where_everything_is(recorder: Recorder, reader: SegmentReader) -> None:
    header = reader.header

    assert header.magic == b"MGTAPP01"
    assert (header.layout, header.pid, header.thread) == (1, os.getpid(), threading.get_native_id())
    assert (header.entry_bytes, header.ring_bytes, header.bulk) == (512, 1 << 22, 0)
    assert all(offset % 64 == 0 for offset in (header.state, header.control, header.frontiers, header.ring))
    with pytest.raises(OSError):
        os.ftruncate(recorder.fd, 0)


def test_spans_come_in_the_order_in_which_they_end(recorder: Recorder, reader: SegmentReader) -> None:
    before = time.monotonic_ns()
    recorder.context(3, 1)
    recorder.begin(OUTER)
    recorder.begin(WORK)
    recorder.end_work(128, 4096)
    recorder.end()

    columns = end_step(recorder, reader).columns

    assert columns["name"].tolist() == [WORK, OUTER]
    assert columns["tokens"].tolist() == [128, 0]
    assert columns["length_squares"].tolist() == [4096, 0]
    assert columns["first"].tolist() == [0, 0]
    assert columns["microbatch"].tolist() == [3, 3]
    assert columns["peer"].tolist() == [-1, -1]
    assert before <= columns["begin"][1] <= columns["begin"][0] <= columns["end"][0] <= columns["end"][1]
    assert columns["end"][1] <= time.monotonic_ns()
    assert (columns["cpu"] > 0).all()
    assert (columns["enqueue"] == 0).all()


def test_an_operation_carries_who_how_much_and_which_message(recorder: Recorder, reader: SegmentReader) -> None:
    recorder.begin(SEND)
    recorder.end_operation(2, 5, 7, 1024, 2, None, 1 << 39)
    recorder.begin(REDUCE)
    issued = recorder.cancel()
    recorder.begin(REDUCE)
    recorder.end_operation(1, -1, 1, 0, 4, issued)

    columns = end_step(recorder, reader).columns

    keys = ("communicator", "peer", "sequence", "bytes", "stream", "message")
    assert [columns[key][0] for key in keys] == [2, 5, 7, 1024, 2, 1 << 39]
    assert columns["message"][1] == 0
    assert columns["issue"][1] < columns["begin"][1]


def test_restart_and_borders_share_marks(recorder: Recorder, reader: SegmentReader) -> None:
    recorder.begin(OUTER)
    recorder.begin(GARBAGE)
    recorder.end()
    recorder.restart()
    recorder.switch(0, -1, WORK, -1)
    recorder.switch(2, 7, -1, -1)

    columns = end_step(recorder, reader).columns

    assert columns["name"].tolist() == [GARBAGE, WORK, OUTER]
    assert columns["first"].tolist() == [0, 1, 1]
    assert columns["layer"].tolist() == [-1, 7, 7]
    assert columns["end"][1] == columns["end"][2]
    assert columns["begin"][2] >= columns["end"][0]


def test_a_steps_end_carries_its_numbers(recorder: Recorder, reader: SegmentReader) -> None:
    recorder.mark()
    recorder.end_step((9, 10, 11, 12, 0, 0, 0, True, 5, 63, 1.5, 2.5, 3.5, 4.5, 5.5, 100))

    (step,) = until(lambda: reader.steps(COLUMNS))

    expected = (9, 10, 11, 12, 0, 0, 0, 1, 5, 63, 1.5, 2.5, 3.5, 4.5, 5.5, 100, 1)
    assert tuple(step.end) == expected
    assert reader.marks() == (1, 1)


@pytest.mark.parametrize("end", [(), (0,) * 18, ("one",), [1]])
def test_what_is_no_steps_end_is_refused(recorder: Recorder, end: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"a step's end|integer"):
        recorder.end_step(end)


def test_a_step_forgets_what_is_open(recorder: Recorder, reader: SegmentReader) -> None:
    recorder.begin(OUTER)
    recorder.begin(WORK)
    recorder.end()

    assert end_step(recorder, reader).end.rows == 1
    assert recorder.depth() == 0
    assert end_step(recorder, reader, 2).end.rows == 0


def test_rows_of_a_step_are_split_to_an_eighth_of_the_ring() -> None:
    recorder = Recorder(bytes(5), BLOCKING, None, 0, 4096)
    reader = SegmentReader(recorder.fd)
    for number in range(10):
        recorder.add(GARBAGE, number, number + 1, 0)
    recorder.end_step((1,))
    assert recorder.close(5.0)

    records = reader.records()

    sizes = [len(record.payload) + 16 for record in records]
    assert max(sizes) <= 4096 // 8
    assert [record.kind for record in records[:-1]] == [ROWS] * (len(records) - 1)
    assert len(records) == 5


def test_spans_of_many_threads_are_all_there(recorder: Recorder, reader: SegmentReader) -> None:
    threads, each = 8, 500

    def record(thread: int) -> None:
        for number in range(each):
            recorder.add(GARBAGE, number, number + thread, 0)
            begin = recorder.mark()
            recorder.add_operation(SEND, begin, recorder.mark(), thread, 1, number, 8, 2, None, 77, 4, 1)

    workers = [threading.Thread(target=record, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    columns = end_step(recorder, reader).columns

    added, sent = columns["name"] == GARBAGE, columns["name"] == SEND
    assert added.sum() == sent.sum() == threads * each
    for thread in range(threads):
        own = sent & (columns["communicator"] == thread)
        assert columns["sequence"][own].tolist() == list(range(each))
        assert (columns["end"] - columns["begin"])[added].tolist().count(thread) == each
    assert (columns["begin"] <= columns["end"]).all()
    assert (columns["message"][sent] == 77).all()
    assert (columns["microbatch"][sent] == 4).all()
    assert recorder.marks == threads * each * 4


def test_what_the_agent_does_not_read_in_time_is_overwritten_and_no_step_waits() -> None:
    recorder = Recorder(bytes(5), BLOCKING, None, 0, 4096)
    reader = SegmentReader(recorder.fd)
    for number in range(1, 201):
        recorder.add(GARBAGE, 0, 1, 0)
        recorder.end_step((number,))
    assert recorder.close(5.0)

    records = reader.records()

    written = 400 - reader.state().lost  # of too many steps at once the resolver leaves out the rows, and says so
    assert records[-1].number == written
    assert len(records) + reader.overwritten == written
    assert reader.overwritten > 200


def test_a_frame_is_a_record_of_the_bulk_ring() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0, 4096, 1 << 16)
    reader, frames = SegmentReader(recorder.fd), SegmentReader(recorder.fd, bulk=True)
    ring, bulk = reader.header.ring, reader.header.bulk

    recorder.write_frame(b"what", bytes(range(13)))
    recorder.write_frame(b"", memoryview(np.arange(6.0).reshape(2, 3)))

    first, second = frames.records()
    assert (bulk, reader.header.bulk_bytes) == (ring + 64 + 4096, 1 << 16)
    assert first == (FRAME, 1, struct.pack("<2IQ8s16s", 4, 0, 13, b"what", bytes(range(13))))
    assert second == (FRAME, 2, struct.pack("<2IQ", 0, 0, 48) + np.arange(6.0).tobytes())
    assert reader.records() == []


def test_the_activity_is_the_innermost_open_span(recorder: Recorder, reader: SegmentReader) -> None:
    assert reader.activity() == (-1, 0)
    assert recorder.innermost() == (-1, 0)

    before = time.monotonic_ns() // 1000
    recorder.begin(OUTER)
    outer = reader.activity()
    recorder.begin(SEND)
    name, since_us = reader.activity()

    assert (outer[0], name) == (OUTER, SEND)
    assert before <= outer[1] <= since_us <= time.monotonic_ns() // 1000
    assert recorder.innermost()[0] == SEND
    recorder.end()
    assert reader.activity() == outer
    recorder.end()
    assert reader.activity() == (-1, 0)


def test_the_state_is_told_at_once(recorder: Recorder, reader: SegmentReader) -> None:
    recorder.set_step(7)
    recorder.set_phase(4)
    recorder.set_memory(1, 2, 3, 4)

    assert tuple(reader.state()) == (7, 4, 0, 0, 1, 2, 3, 4)
    recorder.set_closing()
    assert reader.state().closing == 1


def test_the_agents_word_is_the_newest_whole_one(recorder: Recorder, reader: SegmentReader) -> None:
    assert recorder.control() == (0, 0, 0, 0, 0)

    reader.control(3, 1, 10, 5, 1)
    assert recorder.control() == (3, 1, 10, 5, 1)
    reader.die_while_writing_control()

    assert recorder.control() == (3, 1, 10, 5, 1)


def test_a_closed_recorder_writes_nothing_more(recorder: Recorder, reader: SegmentReader) -> None:
    end_step(recorder, reader)
    assert recorder.close(5.0)
    recorder.end_step((2,))

    assert recorder.close(5.0)
    assert reader.steps(COLUMNS) == []


def test_a_forked_child_goes_on_and_leaves_the_segment_alone() -> None:
    # In a process of its own: here others have threads that no fork survives.
    script = [sys.executable, str(Path(__file__).with_name("forking.py"))]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["children: 0", "step: 5", "operations: 0", "steps ended: 6", "frames: whole"]


def test_what_would_corrupt_it_is_refused(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="no span is open"):
        recorder.end()
    recorder.begin(OUTER)
    with pytest.raises(ValueError, match="no span is open"):
        recorder.switch(2, 0, WORK, -1)
    assert recorder.depth() == 1
    with pytest.raises(ValueError, match="no such name"):
        recorder.begin(10_000)
    with pytest.raises(ValueError, match="wrong number"):
        recorder.end_work(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        recorder.begin("forward")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such track"):
        recorder.enqueue(0, 0, 0, 0)
    with pytest.raises(ValueError, match="no such mark"):
        recorder.add_operation(SEND, 0, 1000, 1, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="no ring of frames"):
        recorder.write_frame(b"", b"")
    with pytest.raises(TypeError, match="bytes-like"):
        recorder.write_frame("", b"")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="power of two"):
        Recorder(bytes(1), bytes(1), None, 0, 5000)
    for bulk_bytes in (5000, 1 << 29, -4096):
        with pytest.raises(ValueError, match="ring of frames must be a power of two"):
            Recorder(bytes(1), bytes(1), None, 0, 4096, bulk_bytes)
    with pytest.raises(ValueError, match="one byte"):
        Recorder(bytes(1), bytes(2), None, 0)
