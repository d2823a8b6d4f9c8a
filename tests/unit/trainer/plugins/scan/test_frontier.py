from __future__ import annotations

from dataclasses import dataclass

from megatronapp.trainer.plugins.scan.frontier import Frontiers, finished_of
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.v1 import trace_pb2


@dataclass
class Work:
    finished: bool = False

    def is_completed(self) -> bool:
        return self.finished


def only(frontiers: Frontiers) -> trace_pb2.Frontier:
    (message,) = frontiers.messages()
    return message


def test_an_operation_is_enqueued_then_started_then_completed() -> None:
    passed: set[str] = set()
    frontiers = Frontiers(passed.__contains__)
    track = frontiers.track(1)

    entry = track.enter(Operation.ALL_REDUCE)
    entry.begin, entry.end = "begin", "end"

    seen = []
    for mark in ("nothing", "begin", "end"):
        passed.add(mark)
        message = only(frontiers)
        seen.append((message.enqueued, message.started, message.completed, message.operation))
    assert seen == [(1, 0, 0, "all_reduce"), (1, 1, 0, "all_reduce"), (1, 1, 1, "")]


def test_an_operation_whose_call_does_not_return_stays_incomplete() -> None:
    frontiers = Frontiers(lambda mark: True)
    track = frontiers.track(2, peer=3, sending=True)
    done = track.enter(Operation.FORWARD_SEND)
    done.end = object()
    track.enter(Operation.BACKWARD_SEND)

    message = only(frontiers)

    assert (message.enqueued, message.completed, message.operation) == (2, 1, "backward_send")
    assert (message.communicator, message.peer, message.sending) == (2, 3, True)
    assert message.enqueued_at_ns > 0


def test_an_asynchronous_operation_completes_with_its_work_also_before_anyone_waits() -> None:
    frontiers, work = Frontiers(lambda mark: True), Work()
    frontiers.track(1).enter(Operation.REDUCE_SCATTER).finished = finished_of(work)

    assert only(frontiers).completed == 0
    work.finished = True
    assert only(frontiers).completed == 1


def test_an_operation_whose_handle_was_dropped_holds_nothing_up() -> None:
    frontiers, work = Frontiers(lambda mark: True), Work()
    frontiers.track(1).enter(Operation.ALL_GATHER).finished = finished_of(work)

    del work

    assert only(frontiers).completed == 1


def test_completion_does_not_overtake_an_older_operation() -> None:
    frontiers = Frontiers(lambda mark: mark == "passed")
    track = frontiers.track(1)
    track.enter(Operation.ALL_REDUCE).end = "not yet"
    track.enter(Operation.ALL_REDUCE).end = "passed"

    assert only(frontiers).completed == 0
