"""Self time against a plain recursive reading of the rule in docs/spans.md."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.agent.layout import COLUMNS
from megatronapp.trainer.agent.span_table import Ints, Spans
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.summary import summarize
from megatronapp.trainer.plugins.scan.operations import BLOCKING, Operation, document

Tree = tuple[Operation, int, list["Tree"]]
"""A span: its name, its own nanoseconds, what lies inside it."""

NAMES = SpanNames.parse(json.loads(json.dumps(document())))
LEAVES = (
    Operation.FORWARD,
    Operation.ALL_REDUCE,
    Operation.DATA,
    Operation.GC,
    Operation.GRAD_SYNC,
    Operation.LAYER_FORWARD,
)


def trees() -> st.SearchStrategy[Tree]:
    node = st.sampled_from(LEAVES), st.integers(0, 100)
    return st.recursive(
        st.tuples(*node, st.just(list[Tree]())),
        lambda inner: st.tuples(*node, st.lists(inner, max_size=3)),
        max_leaves=12,
    )


def duration(tree: Tree) -> int:
    return tree[1] + sum(duration(inner) for inner in tree[2])


def blocking_inside(tree: Tree) -> int:
    """What the outermost blocking spans inside took."""
    return sum(duration(inner) if BLOCKING[inner[0]] else blocking_inside(inner) for inner in tree[2])


def rows_of(forest: list[Tree]) -> tuple[Spans, list[int]]:
    """The spans in the order in which they end, and the self time of each by the rule."""
    rows: list[tuple[int, ...]] = []
    expected: list[int] = []

    def walk(tree: Tree, start: int, blocked: int) -> None:
        name, _, inside = tree
        first, position = len(rows), start
        for inner in inside:
            walk(inner, position, blocked + BLOCKING[name])
            position += duration(inner)
        rows.append((int(name), first, blocked, start, duration(tree)))
        expected.append(duration(tree) - blocking_inside(tree))

    for tree in forest:
        walk(tree, 0, 0)
    return spans(rows), expected


def spans(rows: list[tuple[int, ...]], **columns: list[int]) -> Spans:
    table = np.array(rows, np.int64).reshape(-1, 5)
    made = {key: np.zeros(len(table), np.int64) for key in COLUMNS}
    made |= {"name": table[:, 0], "first": table[:, 1], "blocked": table[:, 2]}
    made |= {key: np.array(values, np.int64) for key, values in columns.items() if key in COLUMNS}
    made |= {"issue": table[:, 3], "begin": table[:, 3], "end": table[:, 3] + table[:, 4]}
    return Spans(made, np.array([0, len(table)]))


def rows_of_summary(recorded: Spans) -> dict[str, Ints]:
    rows, bounds = summarize(recorded, NAMES)
    assert bounds.tolist() == [0, len(rows["name"])]
    return rows


@given(st.lists(st.lists(trees(), max_size=4), min_size=2, max_size=2))
def test_summaries_of_two_steps_hold_the_self_time_of_their_spans(forests: list[list[Tree]]) -> None:
    """Also where layers, which have no rows of their own, stand around and between the others."""
    (first, first_times), (second, second_times) = map(rows_of, forests)
    columns = {key: np.concatenate([first.columns[key], second.columns[key]]) for key in COLUMNS}
    columns["first"][len(first) :] += len(first)
    recorded = Spans(columns, np.array([0, len(first), len(first) + len(second)]))
    expected = [
        (step, name, own)
        for step, (spans, times) in enumerate([(first, first_times), (second, second_times)])
        for name, own in zip(spans.columns["name"].tolist(), times, strict=True)
        if NAMES.summarized[name]
    ]

    rows, bounds = summarize(recorded, NAMES)

    steps = np.repeat([0, 1], np.diff(bounds)).tolist()
    found = {
        (step, name): time
        for step, name, time in zip(steps, rows["name"].tolist(), rows["duration_sum_ns"].tolist(), strict=True)
    }
    keys = {(step, name) for step, name, _ in expected}
    assert found == {key: sum(own for step, name, own in expected if (step, name) == key) for key in keys}


def test_rows_are_told_apart_by_name_chunk_communicator_and_peer() -> None:
    send = int(Operation.FORWARD_SEND)
    recorded = spans(
        [(send, 0, 0, 0, 5), (send, 1, 0, 5, 7), (send, 2, 0, 12, 9)],
        peer=[2, 2, 3],
        bytes=[10, 20, 40],
        communicator=[1, 1, 1],
    )

    rows = rows_of_summary(recorded)

    assert rows["peer"].tolist() == [2, 3]
    assert rows["count"].tolist() == [2, 1]
    assert rows["duration_sum_ns"].tolist() == [12, 9]
    assert rows["duration_min_ns"].tolist() == [5, 9]
    assert rows["duration_max_ns"].tolist() == [7, 9]
    assert rows["bytes"].tolist() == [30, 40]


def test_the_step_and_granularity_full_have_no_rows() -> None:
    recorded = spans([(int(Operation.LAYER_FORWARD), 0, 0, 0, 3), (int(Operation.STEP), 0, 0, 0, 9)])

    assert len(rows_of_summary(recorded)["name"]) == 0


def test_launch_lag_is_the_time_between_enqueue_and_start_on_a_stream() -> None:
    forward = int(Operation.FORWARD)
    recorded = spans([(forward, 0, 0, 100, 5), (forward, 1, 0, 200, 5)], enqueue=[90, 150])

    rows = rows_of_summary(recorded)

    assert rows["launch_lag_sum_ns"].tolist() == [60]
    assert rows["launch_lag_max_ns"].tolist() == [50]


def test_on_a_gpu_host_spans_take_nothing_from_the_stream() -> None:
    rows = [(int(Operation.GC), 0, 0, 0, 50), (int(Operation.FORWARD), 0, 0, 10, 100)]

    def forward_ns(recorded: Spans) -> list[int]:
        summary = rows_of_summary(recorded)
        return summary["duration_sum_ns"][summary["name"] == int(Operation.FORWARD)].tolist()

    assert forward_ns(spans(rows, enqueue=[0, 5])) == [100]
    assert forward_ns(spans(rows)) == [50]


def test_passes_at_whose_end_the_device_has_nothing_queued_are_starved() -> None:
    forward = int(Operation.FORWARD)
    recorded = spans(
        [(forward, 0, 0, 100, 1000), (forward, 1, 0, 1200, 2000)],
        enqueue=[90, 150],
        behind=[99, 900],
        tokens=[7, 8],
        length_squares=[70, 80],
    )

    rows = rows_of_summary(recorded)

    assert rows["count"].tolist() == [2]
    assert rows["starved_count"].tolist() == [1]
    assert rows["starved_sum_ns"].tolist() == [1000]
    assert (rows["starved_tokens"].tolist(), rows["starved_length_squares"].tolist()) == ([7], [70])


def test_nothing_starves_on_a_cpu() -> None:
    rows = rows_of_summary(spans([(int(Operation.FORWARD), 0, 0, 100, 1000)]))

    assert rows["starved_count"].tolist() == [0]
