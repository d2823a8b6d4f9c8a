"""A rank of a stand-in for the CUDA driver, whose streams are threads that are held up at will; says what it saw.

python tests/unit/scan/device_rank.py libcuda.so.1
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

DRIVER = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
sys.path.insert(0, str(Path(__file__).parents[3]))

from megatronapp.scan import COLUMNS, Recorder  # noqa: E402
from tests.support.interpreter_threads import Entrances, lock_kept, spin_until, threads_called, threads_with_a_state  # noqa: E402
from tests.support.segment import SegmentReader, Step  # noqa: E402

HOST, WORK = range(2)
SECONDS = 30.0
LAUNCH_FAILED = 719
BRACKETS_AT_MOST = 10


class Device:
    """Two streams, of which each can be held up."""

    def __init__(self) -> None:
        self.streams = [ctypes.c_void_p() for _ in range(2)]
        for stream in self.streams:
            DRIVER.cuStreamCreate(ctypes.byref(stream), 1)
        self.current = 0
        self._gates: list[ctypes.c_uint32] = []

    def stream(self, _: int) -> int:
        return self.streams[self.current].value or 0

    def hold(self, stream: int) -> ctypes.c_uint32:
        gate = ctypes.c_uint32(0)
        self._gates.append(gate)
        DRIVER.cuStreamWaitValue32_v2(self.streams[stream], ctypes.c_uint64(ctypes.addressof(gate)), 1, 0)
        return gate


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def steps(reader: SegmentReader, count: int) -> list[Step]:
    found: list[Step] = []

    def enough() -> bool:
        found.extend(reader.steps(COLUMNS))
        return len(found) >= count

    until(enough)
    return found


def work(recorder: Recorder) -> int:
    recorder.begin(WORK)
    return recorder.end_operation(1, 1, 1, 8, 2, None, 5)


def two_streams(device: Device, recorder: Recorder, reader: SegmentReader) -> None:
    tracks = [recorder.track(1, peer, True) for peer in range(2)]
    gate = device.hold(0)
    began = time.monotonic_ns()
    for stream in range(2):
        device.current = stream
        ticket = recorder.enqueue(tracks[stream], WORK, 1, 5)
        mark = work(recorder)
        recorder.complete_at(tracks[stream], ticket, mark)
    recorder.begin(HOST)
    recorder.end()
    recorder.end_step((1,))
    until(lambda: reader.frontiers()[1].completed)
    entry = reader.frontiers()[0]
    assert (entry.enqueued, entry.completed, entry.open, entry.messages[0].message) == (1, 0, 1, 5)
    assert not recorder.done(0)
    assert reader.records() == []
    released = time.monotonic_ns()
    gate.value = 1
    (step,) = steps(reader, 1)
    until(lambda: reader.frontiers()[0].completed)
    ended = time.monotonic_ns()
    slack, columns = step.end.reference_error_ns + 1_000_000, step.columns
    assert columns["name"].tolist() == [WORK, WORK, HOST]
    assert released - slack <= columns["begin"][0] <= columns["end"][0] <= ended + slack
    assert began - slack <= columns["begin"][1] <= columns["end"][1] <= released + slack
    assert began <= columns["enqueue"][0] <= columns["enqueue"][1] <= released
    assert columns["behind"][0] > 0
    assert columns["cpu"].tolist()[:2] == [0, 0]
    assert columns["enqueue"][2] == 0
    assert recorder.done(0)
    print("each stream at its own pace")


def many_steps(device: Device, recorder: Recorder, reader: SegmentReader) -> None:
    track, ends = recorder.track(2, -1, False), []
    began, waits = time.monotonic(), DRIVER.stand_in_synchronizations()
    for number in range(2, 60):
        for index in range(100):
            device.current = index % 2
            ticket = recorder.enqueue(track, WORK, number, 0)
            recorder.complete_at(track, ticket, work(recorder))
        recorder.end_step((number,))
        ends += reader.steps(COLUMNS)
    ends += steps(reader, 58 - len(ends))
    assert [step.end.step for step in ends] == list(range(2, 60))
    assert all(step.end.rows == len(step.columns["name"]) == 100 for step in ends)
    references = (DRIVER.stand_in_synchronizations() - waits) / BRACKETS_AT_MOST
    assert references <= time.monotonic() - began + 1
    assert all((step.columns["begin"] <= step.columns["end"]).all() for step in ends)
    until(lambda: reader.frontiers()[track].completed == 58 * 100)
    assert DRIVER.stand_in_slow_readings() == 0
    print("events are used again, and read back cheaply")


def nobody_else_in_the_interpreter(entrances: Entrances, recorder: Recorder, reader: SegmentReader) -> None:
    (resolver,) = threads_called("scan-resolver")
    with lock_kept():
        work(recorder)
        recorder.end_step((60,))
        assert spin_until(lambda: reader.ended(60), SECONDS)
    assert resolver not in threads_with_a_state()
    assert entrances.count() == 0
    print("the resolver never enters the interpreter")


def stands(device: Device, recorder: Recorder, reader: SegmentReader) -> None:
    device.current = 0
    work(recorder)
    gate = device.hold(0)
    before = time.monotonic_ns()
    recorder.begin(WORK)
    between = time.monotonic_ns()
    recorder.end_step((61,))
    device.current = 1
    work(recorder)
    assert reader.unpassed_mark_ns() == 0
    until(lambda: before <= reader.unpassed_mark_ns() <= between)
    work(recorder)
    until(lambda: reader.unpassed_mark_ns() == 0)
    until(lambda: before <= reader.unpassed_mark_ns() <= between)
    gate.value = 1
    until(lambda: reader.unpassed_mark_ns() == 0)
    print("the oldest mark is told that a device does not pass, while nothing is recorded")


def closed_while_held(device: Device) -> None:
    recorder = Recorder(bytes([1, 0]), bytes(2), device.stream, 0)
    gate = device.hold(device.current)
    work(recorder)
    recorder.end_step((1,))
    assert not recorder.close(0.05)
    assert SegmentReader(recorder.fd).records() == []
    gate.value = 1
    print("a close waits for no device")


def failed(device: Device) -> None:
    recorder = Recorder(bytes([1, 0]), bytes(2), device.stream, 0)
    reader = SegmentReader(recorder.fd)
    recorder.complete_at(recorder.track(1, 0, True), 1, work(recorder))
    DRIVER.stand_in_fail(LAUNCH_FAILED)
    recorder.end_step((1,))
    (step,) = steps(reader, 1)
    assert (step.end.step, step.end.rows, reader.state().lost) == (1, 0, 1)
    assert recorder.close(5.0)
    print("a device that fails costs its rows")


def main() -> None:
    device, entrances = Device(), Entrances()
    recorder = Recorder(bytes([1, 0]), bytes(2), device.stream, 0)
    reader = SegmentReader(recorder.fd)
    two_streams(device, recorder, reader)
    many_steps(device, recorder, reader)
    nobody_else_in_the_interpreter(entrances, recorder, reader)
    stands(device, recorder, reader)
    assert recorder.close(5.0)
    closed_while_held(device)
    failed(device)


if __name__ == "__main__":
    main()
