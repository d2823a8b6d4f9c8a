"""An order comes back from its codes, and what is none does not."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.pipeline.orders import Order, all_stages
from megatronapp.core.pipeline.pass_codes import packed, unpacked
from megatronapp.core.pipeline.placement import Layout

LAYOUT = Layout(stages=4, chunks=2, microbatches=8, split=True)


def codes_of(order: Order) -> bytes:
    return packed(np.array([each.kind for each in order]), np.array([each.chunk for each in order]))


@pytest.mark.parametrize(("name", "split"), [("interleaved-zb", True), ("interleaved", False)])
def test_an_order_comes_back(name: str, split: bool) -> None:
    layout = Layout(stages=4, chunks=2, microbatches=8, split=split)
    for order in all_stages(name, layout):
        assert unpacked(codes_of(order), layout) == order


def test_what_is_no_order_of_the_layout_is_none() -> None:
    [order, *_] = all_stages("interleaved-zb", LAYOUT)

    assert unpacked(codes_of(order)[:-2], LAYOUT) is None  # one short
    assert unpacked(codes_of(order)[:-1], LAYOUT) is None
    assert unpacked(codes_of([*order[:-1], order[0]]), LAYOUT) is None  # one twice
    assert unpacked(b"\xff" * 2 * len(order), LAYOUT) is None  # no such chunk
    assert unpacked(codes_of(order[::-1]), LAYOUT) is None  # W before its B
    assert unpacked(codes_of(order), Layout(stages=4, chunks=2, microbatches=12)) is None  # as many, without W
