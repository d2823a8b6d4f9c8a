"""Frames go into the ring in parts, no faster than its reader comes round, and are whole behind it."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent.frames import Frame, Parts
from megatronapp.trainer.agent.layout import FRAME_PART
from megatronapp.trainer.plugins.scope.outlet import AT_ONCE_BYTES, MAX_WAITING_BYTES, PART_BYTES, READ_SECONDS, Outlet

Part = tuple[bytes, bytes]


class Ring:
    """What was written, and a clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.written: list[Part] = []
        self.now = 0.0

    @property
    def bytes_written(self) -> int:
        return sum(len(payload) for _, payload in self.written)

    def outlet(self) -> Outlet:
        return Outlet(lambda *part: self.written.append(part), clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def whole(parts: list[Part]) -> list[tuple[int, bytes]]:
    together = Parts()
    found = [
        together.add(Frame(number, memoryview(descriptor), memoryview(payload)))
        for number, (descriptor, payload) in enumerate(parts, 1)
    ]
    return [each for each in found if each is not None]


def frame(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_frames_of_any_size_come_out_as_they_went_in() -> None:
    ring = Ring()
    outlet = ring.outlet()
    frames = [(7, frame(80)), (9, frame(3 * PART_BYTES, 1)), (7, frame(PART_BYTES + 1, 2))]

    for tap, data in frames:
        assert outlet.put(tap, data)
    outlet.flush()

    assert max(len(payload) for _, payload in ring.written) == PART_BYTES
    assert whole(ring.written) == frames


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 80, PART_BYTES - 79, 3 * PART_BYTES])
def test_a_head_goes_before_its_payload_in_parts_as_large_as_ever(size: int) -> None:
    ring = Ring()
    outlet = ring.outlet()
    head, payload = frame(80), frame(size, 1)

    assert outlet.put(7, payload, head)
    outlet.flush()

    assert [len(part) for _, part in ring.written[:-1]] == [PART_BYTES] * (len(ring.written) - 1)
    assert whole(ring.written) == [(7, head + payload)]


def test_no_more_is_written_than_the_reader_takes_out_and_the_rest_follows() -> None:
    ring = Ring()
    outlet = ring.outlet()
    data = frame(2 * AT_ONCE_BYTES)
    outlet.put(1, data)

    outlet.flush()
    outlet.flush()
    first = ring.bytes_written
    ring.now += READ_SECONDS
    outlet.flush()

    assert first == AT_ONCE_BYTES
    assert whole(ring.written) == [(1, data)]


def test_who_waits_has_all_of_it_written_in_the_time_that_it_takes() -> None:
    ring = Ring()
    outlet = ring.outlet()
    frames = [(tap, frame(AT_ONCE_BYTES, tap)) for tap in range(3)]
    for tap, data in frames:
        outlet.put(tap, data)

    outlet.flush(wait=True)

    assert whole(ring.written) == frames
    assert ring.now == pytest.approx(2 * READ_SECONDS, rel=0.1)


def test_what_waits_is_bounded() -> None:
    outlet = Ring().outlet()
    half = bytes(MAX_WAITING_BYTES // 2)

    assert [outlet.put(1, half) for _ in range(3)] == [True, True, False]


def test_a_ring_that_takes_nothing_is_told_once_and_nothing_waits_for_it() -> None:
    def refuse(*_: bytes) -> None:
        raise ValueError("no ring")

    outlet = Outlet(refuse)
    outlet.put(1, frame(2 * PART_BYTES))

    with pytest.raises(ValueError, match="no ring"):
        outlet.flush()
    outlet.flush()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_was_overwritten_takes_its_frame_with_it_alone(lost: int) -> None:
    ring = Ring()
    outlet = ring.outlet()
    frames = [(1, frame(3 * PART_BYTES)), (1, frame(3 * PART_BYTES, 1))]
    for tap, data in frames:
        outlet.put(tap, data)
    outlet.flush()

    del ring.written[lost]

    assert whole(ring.written) == frames[1:]


@pytest.mark.parametrize("descriptor", [b"", bytes(4), FRAME_PART.pack(1, 1, 1), FRAME_PART.pack(1, 0, 0)])
def test_what_is_no_part_of_a_frame_is_refused(descriptor: bytes) -> None:
    with pytest.raises(DataError):
        Parts().add(Frame(1, memoryview(descriptor), memoryview(b"")))


def test_parts_of_more_than_a_frame_may_have_are_refused() -> None:
    parts = Parts()
    much = memoryview(bytes(16 << 20))
    parts.add(Frame(1, memoryview(FRAME_PART.pack(1, 0, 4)), much))
    parts.add(Frame(2, memoryview(FRAME_PART.pack(1, 1, 4)), much))

    with pytest.raises(DataError, match="more than"):
        parts.add(Frame(3, memoryview(FRAME_PART.pack(1, 2, 4)), much))
