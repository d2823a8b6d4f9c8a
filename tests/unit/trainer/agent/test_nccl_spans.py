"""What NCCL tells of a step's operations stands in the timeline once: in place of a hook's marks, or by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megatronapp.core.trace.columns import span_columns
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.encode import encode
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.nccl_spans import NCCL_STREAM, NcclSpans
from megatronapp.trainer.agent.nccl_times import GpuClock, Recorded, RecordedOperations
from megatronapp.trainer.agent.operations import Completed, Direction, Enqueued, Lane
from megatronapp.trainer.agent.span_table import Ints
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Step
from megatronapp.trainer.plugins.scan.operations import Operation, document

NAMES = SpanNames.parse(json.loads(json.dumps(document())))
AHEAD = 1_000_000
"""By which the GPU's clock is ahead of the host's."""
RANK, GROUPS = 3, {1: (1, 3), 2: (2, 3, 4)}
LANE = Lane(77, 2, 1, -1, Direction.NONE, False, 1, 0, 0, 0, 0, 0, 0, "", 0, None, None)
LANES = {
    0: LANE,
    1: replace(LANE, communicator=78, ranks=3),
    2: replace(LANE, peer=0, direction=Direction.SENDS),
    3: replace(LANE, communicator=79, ranks=5),
    4: replace(LANE, peer=0, direction=Direction.RECEIVES),
}


def rows(*calls: dict[str, Any]) -> Ints:
    """Of a GPU's spans, called 100 before they begin on the device."""
    table = np.zeros((len(layout.COLUMNS), len(calls)), np.int64)
    for at, call in enumerate(calls):
        own = {"communicator": 1, "peer": -1, "enqueue": call["issue"] - 100, "behind": 50, "begin": call["issue"]}
        for name, value in {**own, **call}.items():
            table[layout.COLUMNS.index(name), at] = value
    return table


def operation(function: str, at: int, start: int, end: int, count: int = 8, lane: int = 0, number: int = 1) -> Recorded:
    """Times of the device by the host's clock."""
    called = Enqueued(lane, -1, number, 0, count, at, 1, True, function, "ncclFloat32", "", "")
    times = (at, at + 1, start + 3, end + 3, start + AHEAD, end + AHEAD)
    return Recorded(called, Completed(lane, 1, number, *times, *[0] * 6))


def detail(table: Ints, *operations: Recorded) -> list[dict[str, int]]:
    made = NcclSpans(RANK, NAMES).detail(table, operations, LANES, GROUPS)
    assert made is not None
    return [dict(zip(layout.COLUMNS, row, strict=True)) for row in made.T.tolist()]


ALL_REDUCE = {"name": Operation.ALL_REDUCE, "issue": 1000, "end": 2000, "bytes": 32, "sequence": 9}


def test_the_devices_own_times_replace_a_hooks_marks() -> None:
    tells_the_clock = operation("AllReduce", 2100, 2102, 2110, number=2)

    span, _ = detail(rows(ALL_REDUCE), operation("AllReduce", 950, 1300, 1990), tells_the_clock)

    assert (span["issue"], span["end"]) == (pytest.approx(1300, abs=3), pytest.approx(1990, abs=3))
    assert (span["sequence"], span["communicator"], span["stream"]) == (9, 1, 0)


def test_what_is_coalesced_is_one_span_over_all_of_its_operations() -> None:
    both = [operation("AllReduce", 950 + n, 1100 + 400 * n, 1450 + 400 * n, count=4, number=1 + n) for n in (0, 1)]

    (span,) = detail(rows(ALL_REDUCE), *both)

    assert span["end"] - span["issue"] == pytest.approx(750, abs=1)


@pytest.mark.parametrize(
    "other",
    [
        operation("AllReduce", 950, 1300, 1990, lane=1),
        operation("AllGather", 950, 1300, 1990),
        operation("AllReduce", 950, 1300, 1990, count=9),
        operation("AllReduce", 1951, 1952, 1990),
        operation("AllReduce", 899, 1300, 1990),
    ],
    ids=["of others", "another function", "larger", "after the call", "before the call"],
)
def test_what_the_hook_has_not_called_is_a_span_of_its_own(other: Recorded) -> None:
    hooked, alone = detail(rows(ALL_REDUCE), other)

    assert (hooked["issue"], hooked["end"]) == (1000, 2000)
    assert (alone["stream"], alone["sequence"], alone["enqueue"]) == (NCCL_STREAM, 0, other.called.at_ns)


def test_an_operation_belongs_to_the_newest_call() -> None:
    lost = {**ALL_REDUCE, "stream": 4}
    newer = {**ALL_REDUCE, "issue": 1200, "sequence": 10}

    first, second = detail(rows(lost, newer), operation("AllReduce", 1150, 1300, 1990))

    assert (first["issue"], first["end"]) == (1000, 2000)
    assert second["issue"] != 1200


def test_messages_posted_at_once_are_told_apart_by_their_order() -> None:
    posted = [
        {"name": Operation.FORWARD_SEND, "peer": 1, "issue": 1000, "end": 5000, "bytes": 32, "stream": 2, "message": n}
        for n in (1, 2)
    ]
    sent = [operation("Send", 920 + n, 1500 * n, 1500 * n + 900, lane=2, number=n) for n in (1, 2)]

    first, second = detail(rows(*posted), *sent)

    assert first["message"] == 1
    assert first["end"] < second["issue"]


def test_messages_of_one_group_keep_their_marks_as_they_run_in_one_kernel() -> None:
    sent = {"name": Operation.FORWARD_SEND, "peer": 1, "issue": 1000, "end": 9000, "bytes": 32, "stream": 2}
    received = {**sent, "name": Operation.BACKWARD_RECV, "stream": 3}
    alone = {**received, "issue": 10_000, "end": 18_000}
    group = operation("Send", 920, 1100, 1112, lane=2), operation("Recv", 921, 1100, 1112, lane=4)

    spans = detail(rows(sent, received, alone), *group, operation("Recv", 9920, 10_100, 17_900, lane=4, number=2))

    assert [(span["issue"], span["end"]) for span in spans[:2]] == [(1000, 9000), (1000, 9000)]
    assert spans[2]["end"] - spans[2]["issue"] == 7800


def test_a_barrier_and_an_exchange_among_all_take_what_torch_makes_of_them() -> None:
    barrier = {**ALL_REDUCE, "name": Operation.BARRIER, "bytes": 0}
    exchange = {**ALL_REDUCE, "name": Operation.ALL_TO_ALL, "issue": 3000, "end": 4000}

    spans = detail(
        rows(barrier, exchange),
        operation("AllReduce", 950, 1300, 1990, count=1),
        operation("Send", 2950, 3100, 3300, lane=2, number=1),
    )

    assert [span["issue"] in (1000, 3000) for span in spans] == [False, False]


def test_a_communicator_of_unknown_members_has_no_number() -> None:
    *_, alone = detail(rows(ALL_REDUCE), operation("Reduce", 950, 1300, 1990, lane=3))

    assert (alone["name"], alone["communicator"]) == (Operation.REDUCE, 0)


def test_without_an_operations_end_the_marks_stand() -> None:
    known = operation("AllReduce", 2100, 2300, 2400, number=2)
    unfinished = Recorded(operation("AllReduce", 950, 1300, 1990).called)

    hooked, alone = detail(rows(ALL_REDUCE), unfinished, known)

    assert (hooked["issue"], hooked["end"], alone["stream"]) == (1000, 2000, NCCL_STREAM)


def test_rows_that_can_not_be_true_are_left_to_who_checks_them() -> None:
    table = rows({**ALL_REDUCE, "name": 10_000})

    assert NcclSpans(RANK, NAMES).detail(table, [operation("AllReduce", 950, 1300, 1990)], LANES, GROUPS) is None


def test_the_timeline_has_them_and_the_summary_the_marks() -> None:
    table = rows(ALL_REDUCE)
    told = NcclSpans(RANK, NAMES).detail(table, unseen_and_seen(), LANES, GROUPS)

    (messages,) = encode([Step(StepEnd(4, rows=1, traced=1), table, told)], NAMES)

    summary, (batch,) = messages.summary.summary, messages.batches
    assert (summary.rows, batch.batch.count, messages.reason) == (1, 2, "")
    assert span_columns(batch.batch)["stream"].tolist() == [1, NCCL_STREAM]


def unseen_and_seen() -> Sequence[Recorded]:
    return operation("AllReduce", 950, 1300, 1990), operation("Broadcast", 2500, 2600, 2700, number=2)


def test_an_operation_is_whole_when_its_end_was_told() -> None:
    recorded, one = RecordedOperations(), operation("AllReduce", 950, 1300, 1990)
    recorded.note([one.called])

    assert (recorded.whole(900), recorded.whole(950)) == (True, False)
    assert one.ended is not None
    recorded.note([one.ended])
    assert recorded.whole(950)
    assert len(recorded.take(950)) == 1
    assert recorded.take(950) == []


def test_a_clock_lies_within_its_tightest_bounds_and_begins_anew_when_it_was_set() -> None:
    clock = GpuClock()
    clock.note(0, 100, at_ns=0)
    clock.note(80, 300, at_ns=10)
    assert clock.offset_ns == 90
    clock.note(10, 5, at_ns=20)  # can't be
    assert clock.offset_ns == 90

    clock.note(5000, 5010, at_ns=30)

    assert clock.offset_ns == 5005
