"""The native recorder on a real GPU: spans of its streams, placed on the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

from megatronapp.scan import COLUMNS, Recorder, mark_cost_ns
from tests.gpu.devices import needs
from tests.support.interpreter_threads import Entrances, lock_kept, spin_until, threads_called, threads_with_a_state
from tests.support.segment import SegmentReader, Step

pytestmark = [
    pytest.mark.gpu,
    needs(1),
]

HOST, WORK, REDUCE = range(3)
SLACK_NS = 100_000


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    torch.cuda.current_stream(0).synchronize()  # makes the context
    made = Recorder(bytes([1, 0, 0]), bytes([0, 0, 1]), torch._C._cuda_getCurrentRawStream, 0)
    yield made
    assert made.close(60.0)


@pytest.fixture
def reader(recorder: Recorder) -> SegmentReader:
    return SegmentReader(recorder.fd)


@pytest.fixture
def matrix() -> torch.Tensor:
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    return matrix


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
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


def test_spans_of_two_streams_keep_their_order_and_lie_within_the_step(
    recorder: Recorder, reader: SegmentReader, matrix: torch.Tensor
) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    began = time.monotonic_ns()
    with torch.cuda.stream(first):
        recorder.begin(WORK)
        for _ in range(20):
            matrix @ matrix
        recorder.end()
    second.wait_stream(first)
    with torch.cuda.stream(second):
        recorder.begin(WORK)
        for _ in range(10):
            matrix @ matrix
        recorder.end()
    enqueued = time.monotonic_ns()
    recorder.end_step((1,))
    torch.cuda.synchronize()
    ended = time.monotonic_ns()
    (step,) = steps(reader, 1)

    slack, columns = step.end.reference_error_ns + SLACK_NS, step.columns
    assert step.end.reference_ns >= columns["end"][1] - slack
    assert began - slack <= columns["begin"][0] < columns["end"][0] <= columns["begin"][1] + 1000
    assert columns["begin"][1] < columns["end"][1] <= ended + slack
    durations = columns["end"] - columns["begin"]
    assert durations[0] > 20 * 2 * 8192**3 / 1e15 * 1e9
    assert durations[0] > durations[1]
    assert (columns["enqueue"] >= began).all()
    assert (columns["enqueue"] <= enqueued).all()
    assert (columns["cpu"] == 0).all()


def test_an_asynchronous_span_is_told_by_its_marks_from_any_stream(
    recorder: Recorder, reader: SegmentReader, matrix: torch.Tensor
) -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        begin = recorder.mark()
        matrix @ matrix
        end = recorder.mark()
    recorder.add_operation(REDUCE, begin, end, 1, -1, 1, 64, 4)
    recorder.end_step((1,))
    (step,) = steps(reader, 1)

    assert step.columns["name"].tolist() == [REDUCE]
    assert step.columns["end"][0] - step.columns["begin"][0] > 2 * 8192**3 / 1e15 * 1e9


def test_nobody_waits_for_the_device_but_the_resolver(
    recorder: Recorder, reader: SegmentReader, matrix: torch.Tensor
) -> None:
    track = recorder.track(1, -1, False)
    recorder.begin(REDUCE)
    for _ in range(200):
        matrix @ matrix
    ticket = recorder.enqueue(track, REDUCE, 1, 0)
    mark = recorder.end_operation(1, -1, 1, 64, 0)
    recorder.complete_at(track, ticket, mark)
    recorder.end_step((1,))

    assert not recorder.done(mark)
    assert reader.frontiers()[track].completed == 0
    assert reader.records() == []
    torch.cuda.synchronize()
    assert recorder.done(mark)
    until(lambda: reader.frontiers()[track].completed == 1)
    assert len(steps(reader, 1)) == 1


def test_the_resolver_never_takes_the_interpreters_lock(matrix: torch.Tensor) -> None:
    entrances, before = Entrances(), threads_called("scan-resolver")
    recorder = Recorder(bytes([1, 0, 0]), bytes([0, 0, 1]), torch._C._cuda_getCurrentRawStream, 0)
    (resolver,) = threads_called("scan-resolver") - before
    reader, resolved = SegmentReader(recorder.fd), 0
    track = recorder.track(1, -1, False)

    for number in range(1, 21):
        with lock_kept():
            recorder.begin(REDUCE)
            matrix @ matrix
            ticket = recorder.enqueue(track, REDUCE, number, 0)
            recorder.complete_at(track, ticket, recorder.end_operation(1, -1, number, 64, 0))
            recorder.end_step((number,))
            resolved += spin_until(partial(reader.ended, number), 60)
    states = threads_with_a_state()
    assert recorder.close(60.0)

    entered = entrances.count()
    print(f"resolved under the lock: {resolved} of 20 steps; threads that entered the interpreter: {entered}")
    assert resolved == 20
    assert resolver not in states
    assert entered == 0


def test_host_spans_keep_the_hosts_clock(recorder: Recorder, reader: SegmentReader) -> None:
    began = time.monotonic_ns()
    recorder.begin(HOST)
    recorder.end_work(1, 1)
    recorder.end_step((1,))
    (step,) = steps(reader, 1)

    assert began <= step.columns["begin"][0] <= step.columns["end"][0] <= time.monotonic_ns()
    assert step.columns["enqueue"][0] == 0


def test_events_are_used_again(recorder: Recorder, reader: SegmentReader) -> None:
    ends: list[Step] = []
    for number in range(1, 21):
        for _ in range(1000):
            recorder.begin(WORK)
            recorder.end()
        recorder.end_step((number,))
        ends += reader.steps(COLUMNS)
    ends += steps(reader, 20 - len(ends))

    assert [step.end.step for step in ends] == list(range(1, 21))
    assert all(step.end.rows == 1000 for step in ends)


def test_the_cost_of_a_mark_on_a_stream_is_told() -> None:
    costs = mark_cost_ns(torch._C._cuda_getCurrentRawStream, 0)

    assert costs["stream mark"] > 0
    print({what: round(cost) for what, cost in costs.items()})
