"""The ring of frames, one suite over the recorder in Python and the native one, where its wheel is installed."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatronapp.trainer.agent.frames import Frame
from megatronapp.trainer.agent.ring import RingReader
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import WHEEL, make_native_recorder, make_python_recorder
from tests.unit.trainer.plugins.scan.frame_writer import payload

MAKERS: dict[str, Callable[..., Recorder]] = {"python": make_python_recorder}
if find_spec(WHEEL):
    MAKERS["native"] = make_native_recorder
SCRIPT = Path(__file__).with_name("frame_writer.py")
BULK = 1 << 13
MOST = BULK // 8 - 32
"""What a frame's descriptor and payload may have together."""
SIZES = st.integers(0, MOST - 8)


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Frames:
    """Those that a reader has got of a segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        assert segment.bulk is not None
        self.ring: RingReader = segment.bulk
        self.count = 0
        self.number = 0

    def read(self) -> list[Frame]:
        """What was written since the last call; numbers increase, and none is missing that was not counted."""
        found: list[Frame] = []
        head = self.ring.head()
        while self.ring.position < head:
            for frame in map(Frame.of, self.ring.records(head)):
                assert frame.number > self.number
                self.number = frame.number
                found.append(frame)
        self.count += len(found)
        assert self.count + self.ring.lost == self.number
        return found


@contextmanager
def made(kind: str, bulk_bytes: int = BULK) -> Iterator[tuple[Recorder, Frames]]:
    recorder = MAKERS[kind](torch.device("cpu"), 4096, bulk_bytes)
    segment = Segment(os.dup(recorder.fd))
    yield recorder, Frames(segment)
    segment.close()
    recorder.close(1.0)


def check(frame: Frame) -> None:
    number, words = struct.unpack("<2Q", frame.descriptor)
    assert number == frame.number
    assert np.array_equal(np.frombuffer(frame.payload, np.uint64), payload(number, words)), "a torn frame"


def test_a_recorder_has_no_ring_of_frames_unless_asked(kind: str) -> None:
    recorder = MAKERS[kind](torch.device("cpu"), 4096)
    segment = Segment(os.dup(recorder.fd))

    assert segment.bulk is None
    assert os.fstat(recorder.fd).st_size == segment.sections.size
    with pytest.raises(ValueError, match="no ring of frames"):
        recorder.write_frame(b"", b"")


def test_a_frame_is_read_as_it_was_written(kind: str) -> None:
    with made(kind) as (recorder, frames):
        tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        recorder.write_frame(b"layer 7", tensor.numpy().data)
        recorder.write_frame(b"", b"")

        first, second = frames.read()

        assert (bytes(first.descriptor), second.descriptor.nbytes, second.payload.nbytes) == (b"layer 7", 0, 0)
        assert np.frombuffer(first.payload, np.float32).tolist() == list(range(12))
        assert frames.segment.ring.head() == 0


def test_both_recorders_place_frames_alike() -> None:
    rings = []
    for kind in MAKERS:
        with made(kind) as (recorder, frames):
            for size in range(0, MOST, 41):
                recorder.write_frame(b"d" * (size % 9), b"p" * (size - size % 9))
            sections = frames.segment.sections
            head_and_tail = os.pread(recorder.fd, 16, sections.bulk)
            rings.append((sections, head_and_tail, [bytes(frame.payload) for frame in frames.read()]))

    assert rings.count(rings[0]) == len(MAKERS)


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(0, 8), SIZES, st.booleans()), max_size=60))
def test_frames_of_any_size_come_whole_and_those_overwritten_are_counted(
    kind: str, sizes: list[tuple[int, int, bool]]
) -> None:
    with made(kind) as (recorder, frames):
        unread_bytes = 0
        for number, (about, size, read) in enumerate(sizes, 1):
            recorder.write_frame(bytes([number]) * about, bytes([number ^ 255]) * size)
            unread_bytes += 32 + about + size + 14
            if read or number == len(sizes):
                lost = frames.ring.lost
                for frame in frames.read():
                    about, size, _ = sizes[frame.number - 1]
                    assert bytes(frame.descriptor) == bytes([frame.number]) * about
                    assert bytes(frame.payload) == bytes([frame.number ^ 255]) * size
                assert frames.number == number
                assert frames.ring.lost == lost or unread_bytes > BULK * 3 // 4
                unread_bytes = 0


def test_a_frame_beyond_an_eighth_of_the_ring_is_refused_and_changes_nothing(kind: str) -> None:
    with made(kind) as (recorder, frames):
        recorder.write_frame(b"", bytes(MOST))
        for descriptor, content in ((b"", bytes(MOST + 1)), (b"d", bytes(MOST)), (bytes(BULK), b"")):
            with pytest.raises(ValueError, match=f"this ring takes at most {MOST + 16}"):
                recorder.write_frame(descriptor, content)
        recorder.write_frame(b"", b"next")

        assert [(frame.number, frame.payload.nbytes) for frame in frames.read()] == [(1, MOST), (2, 4)]


def test_what_is_not_contiguous_is_refused_and_changes_nothing(kind: str) -> None:
    with made(kind) as (recorder, frames):
        for uneven in (memoryview(bytes(8))[::2], np.zeros((4, 4), np.float32).T[1:]):
            with pytest.raises((ValueError, BufferError)):
                recorder.write_frame(b"", uneven)  # type: ignore[arg-type]

        assert frames.read() == []
        recorder.write_frame(b"", b"next")
        assert [frame.number for frame in frames.read()] == [1]


@pytest.mark.parametrize("bulk_bytes", [-4096, 2048, 5000, 1 << 29])
def test_a_ring_of_another_size_is_refused(kind: str, bulk_bytes: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        MAKERS[kind](torch.device("cpu"), 4096, bulk_bytes)


def test_an_agent_that_replaces_another_reads_on_behind_it(kind: str) -> None:
    with made(kind) as (recorder, frames):
        recorder.write_frame(b"", b"first")
        assert len(frames.read()) == 1
        recorder.write_frame(b"", b"second")
        after = Segment(os.dup(recorder.fd))
        assert after.bulk is not None

        (frame,) = map(Frame.of, after.bulk.records(after.bulk.head()))

        assert (frame.number, bytes(frame.payload), after.bulk.lost) == (2, b"second", 0)
        after.close()


@contextmanager
def writer(kind: str, bulk_bytes: int, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], Frames]]:
    command = [sys.executable, str(SCRIPT), kind, str(bulk_bytes), *map(str, arguments)]
    process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        segment = Segment(os.open(process.stdout.readline().strip(), os.O_RDWR))
        process.stdin.write("\n")
        process.stdin.flush()
        yield process, Frames(segment)
        segment.close()
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_slow_reader_in_another_process_takes_no_torn_frame(kind: str) -> None:
    total, chance = 6000, random.Random(1)
    with writer(kind, 1 << 20, total, 1) as (process, frames):
        deadline = time.monotonic() + 60
        while frames.number < total:
            assert time.monotonic() < deadline
            for frame in frames.read():
                check(frame)
            time.sleep(chance.random() * 0.003)

        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert frames.count + frames.ring.lost == total
        assert frames.count > 10
        assert frames.ring.lost > 10


def test_a_writer_that_dies_in_the_middle_of_a_frame_leaves_the_whole_ones(kind: str) -> None:
    with writer(kind, 1 << 22, "torn") as (process, frames):
        assert process.wait(60) == -signal.SIGBUS

        (frame,) = frames.read()

        check(frame)
        assert (frame.number, frames.ring.lost) == (1, 0)


def test_a_writer_that_is_killed_leaves_whole_frames(kind: str) -> None:
    with writer(kind, 1 << 25, 1 << 30) as (process, frames):
        deadline = time.monotonic() + 60
        while frames.ring.head() < 1 << 26:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL

        left = frames.read()

        for frame in left:
            check(frame)
        assert len(left) > 3  # so many of the largest are left whatever the last one overwrote
        assert frames.ring.lost > 0
