"""What the hooks say of operations, as the agent reads it from the segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.trainer.agent.calls import Call
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.plugins.scan.frontier import Frontiers, finished_of
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.python_recorder import PythonRecorder
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.v1 import trace_pb2
from tests.unit.trainer.plugins.scan.recorded import Reader
from tests.unit.trainer.plugins.scan.test_recorder import MAKERS


@dataclass
class Work:
    finished: bool = False

    def is_completed(self) -> bool:
        return self.finished


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def recorder(request: pytest.FixtureRequest) -> Recorder:
    make: Callable[[torch.device], Recorder] = request.param
    return make(torch.device("cpu"))


def only(recorder: Recorder) -> trace_pb2.Frontier:
    (frontier,) = Reader(recorder).heartbeat().frontiers
    return frontier


def test_an_operation_is_enqueued_then_completed(recorder: Recorder) -> None:
    track = Frontiers(recorder).track(1)
    entry = track.enter(Operation.ALL_REDUCE)
    under_way = only(recorder)

    entry.end = recorder.mark()

    assert (under_way.enqueued, under_way.started, under_way.completed, under_way.operation) == (1, 1, 0, "all_reduce")
    frontier = only(recorder)
    assert (frontier.enqueued, frontier.started, frontier.completed, frontier.operation) == (1, 1, 1, "all_reduce")
    assert 0 < frontier.enqueued_at_ns <= frontier.completed_at_ns


def test_a_collective_under_way_tells_how_it_was_called(recorder: Recorder) -> None:
    track = Frontiers(recorder).track(1)
    entry = track.enter(Operation.BROADCAST, 12, Call("bfloat16", 3).pack())
    track.enter(Operation.ALL_REDUCE, 5, Call("float32").pack())
    first = only(recorder)

    entry.end = recorder.mark()

    assert (first.operation, first.elements, first.data_type, first.root) == ("broadcast", 12, "bfloat16", 3)
    second = only(recorder)
    assert (second.operation, second.elements, second.data_type) == ("all_reduce", 5, "float32")
    assert not second.HasField("root")
    assert not first.open


def test_an_operation_whose_call_does_not_return_stays_incomplete(recorder: Recorder) -> None:
    track = Frontiers(recorder).track(2, peer=3, sending=True)
    track.enter(Operation.FORWARD_SEND).end = recorder.mark()
    track.enter(Operation.BACKWARD_SEND)

    frontier = only(recorder)

    assert (frontier.enqueued, frontier.completed, frontier.operation) == (2, 1, "backward_send")
    assert (frontier.communicator, frontier.peer, frontier.sending) == (2, 3, True)


def test_an_asynchronous_operation_completes_with_its_work_also_before_anyone_waits(recorder: Recorder) -> None:
    frontiers, work = Frontiers(recorder), Work()
    frontiers.track(1).enter(Operation.REDUCE_SCATTER).finished = finished_of(work)

    frontiers.poll()
    assert only(recorder).completed == 0
    work.finished = True
    frontiers.poll()
    assert only(recorder).completed == 1


def test_an_operation_whose_handle_was_dropped_holds_nothing_up(recorder: Recorder) -> None:
    frontiers, work = Frontiers(recorder), Work()
    frontiers.track(1).enter(Operation.ALL_GATHER).finished = finished_of(work)

    del work
    frontiers.track(1).enter(Operation.ALL_GATHER)

    frontier = only(recorder)
    assert (frontier.enqueued, frontier.completed) == (2, 1)


def test_messages_that_end_out_of_order_are_open_by_name(recorder: Recorder) -> None:
    frontiers = Frontiers(recorder)
    track = frontiers.track(1, peer=0, sending=False)
    names = [MessageId(Direction.FORWARD, microbatch).pack() for microbatch in range(3)]
    tickets = [track.enter(Operation.FORWARD_RECV, 9, name) for name in names]

    tickets[1].complete()

    frontier = only(recorder)
    assert (frontier.enqueued, frontier.completed) == (3, 0)
    assert [(message.step, message.message) for message in frontier.open] == [(9, names[0]), (9, names[2])]
    tickets[0].end = recorder.mark()
    assert (only(recorder).completed, [message.message for message in only(recorder).open]) == (2, [names[2]])


def test_of_many_open_messages_the_oldest_are_told_and_how_many_there_are(recorder: Recorder) -> None:
    frontiers = Frontiers(recorder)
    track = frontiers.track(1, peer=0, sending=False)

    for message in range(1, 41):
        track.enter(Operation.FORWARD_RECV, 1, message)

    frontier = only(recorder)
    assert [message.message for message in frontier.open] == list(range(1, 17))
    assert frontier.open_count == 40


class LateTimebase:
    """A device that is as far as the test says."""

    passed = 0
    count = 0

    def mark(self) -> tuple[int, int]:
        LateTimebase.count += 1
        return LateTimebase.count, 0

    host = mark

    def done(self, mark: tuple[int, int]) -> bool:
        return mark[0] <= self.passed

    def resolve(self, rows: list[object]) -> object:
        from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase

        return CpuTimebase.resolve(rows)  # type: ignore[arg-type]


def test_a_step_is_written_when_the_device_has_done_it_and_its_operations_end_then() -> None:
    device = LateTimebase()
    recorder = PythonRecorder(device)  # type: ignore[arg-type]
    reader, frontiers = Reader(recorder), Frontiers(recorder)
    recorder.begin(Operation.ALL_REDUCE)
    entry = frontiers.track(1).enter(Operation.ALL_REDUCE)
    entry.end = recorder.end_operation(1, -1, entry.sequence, 8, 0)

    recorder.end_step(StepEnd(1))
    behind = (reader.steps(), reader.heartbeat().frontiers[0].completed)
    device.passed = 100
    recorder.end_step(StepEnd(2))

    assert behind == ([], 0)
    assert [step.end.step for step in reader.steps()] == [1, 2]
    assert reader.heartbeat().frontiers[0].completed == 1
