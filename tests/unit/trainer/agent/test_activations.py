"""Activations in flight, from the order in which a step's passes ended."""

from __future__ import annotations

import json

import numpy as np
import pytest

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.pass_codes import unpacked
from megatronapp.core.pipeline.placement import Layout
from megatronapp.trainer.agent.activations import chosen_orders, peaks
from megatronapp.trainer.agent.span_table import Spans
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.plugins.scan.operations import Operation, document

NAMES = SpanNames.parse(json.loads(json.dumps(document())))
OF = {Kind.FORWARD: Operation.FORWARD, Kind.BACKWARD: Operation.BACKWARD, Kind.WGRAD: Operation.WGRAD}


def spans(*steps: list[Operation]) -> Spans:
    bounds = np.cumsum([0, *map(len, steps)])
    return Spans({"name": np.array([each for step in steps for each in step], np.int64)}, bounds)


def test_a_stage_that_chose_tells_the_order_of_its_passes() -> None:
    layout = Layout(stages=4, chunks=2, microbatches=8, split=True)
    order = orders.all_stages("interleaved-zb", layout)[1]
    ran = [each for kind, _, _ in order for each in (Operation.DECIDE, OF[kind])]
    chunks = [chunk for _, each, _ in order for chunk in (-1, each)]
    chose = spans(ran, [Operation.FORWARD, Operation.BACKWARD])
    chose.columns["chunk"] = np.array([*chunks, -1, -1])  # type: ignore[index]

    told, of_stock = chosen_orders(chose, NAMES)

    assert unpacked(told, layout) == order
    assert of_stock == b""


@pytest.mark.parametrize("name", ["interleaved", "interleaved-zb", "depth-first", "breadth-first"])
def test_a_steps_peak_is_that_of_its_order(name: str) -> None:
    layout = Layout(stages=4, chunks=2, microbatches=8, split=name == "interleaved-zb")
    ran = orders.all_stages(name, layout)

    found = peaks(spans(*[[OF[operation.kind] for operation in order] for order in ran]), NAMES)

    assert found.tolist() == [caps.peak(order) for order in ran]


def test_other_spans_hold_nothing() -> None:
    step = [Operation.DATA, Operation.FORWARD, Operation.FORWARD_SEND, Operation.BACKWARD, Operation.OPTIMIZER]

    assert peaks(spans(step, [], [Operation.DATA]), NAMES).tolist() == [1, 0, 0]


def test_where_forwards_and_backwards_do_not_pair_nothing_is_known() -> None:
    evaluated = [Operation.FORWARD, Operation.BACKWARD, Operation.FORWARD]

    assert peaks(spans(evaluated, [Operation.FORWARD, Operation.BACKWARD]), NAMES).tolist() == [0, 1]
