"""How many receives are posted ahead: enough for every order, and no more than the cap."""

from __future__ import annotations

from itertools import product

import pytest

from megatronapp.core.pipeline import orders, receives
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.receives import AHEAD, least_ahead
from tests.support.random_pipelines import random_case

STATIC = [
    *(("interleaved", chunks) for chunks in (1, 2, 4)),
    *(("interleaved-zb", chunks) for chunks in (1, 2, 4)),
    ("zb-h1", 1),
    ("zb-h2", 1),
]


@pytest.mark.parametrize(("hint", "chunks"), STATIC)
def test_one_message_ahead_is_enough_for_static_schedules(
    hint: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receives, "AHEAD", 1)
    for stages, rounds in product((2, 4, 8), (1, 2, 4)):
        layout = Layout(stages=stages, chunks=chunks, microbatches=stages * rounds, split=True)

        assert least_ahead(layout, orders.all_stages(hint, layout)) == 1


def test_hosts_that_are_far_apart_need_as_many_as_they_are() -> None:
    """Stage 0 sends the 16 of its first chunk before it takes anything. Stage 1, which posts n ahead, goes on until it
    has sent n + 1, and has posted 2 n + 1 by then."""
    layout = Layout(stages=2, chunks=2, microbatches=16)
    forward = [[Operation(Kind.FORWARD, chunk, i) for i in range(16)] for chunk in range(2)]
    backward = [[Operation(Kind.BACKWARD, chunk, i) for i in range(16)] for chunk in range(2)]
    first = [*forward[0], *forward[1], *backward[1], *backward[0]]
    second = [each for pair in zip(*forward, strict=True) for each in pair]
    second += [each for pair in zip(backward[1], backward[0], strict=True) for each in pair]

    assert least_ahead(layout, [first, second]) == 8


@pytest.mark.parametrize("seed", range(150))
def test_orders_that_were_chosen_need_no_more_than_the_cap(seed: int) -> None:
    case = random_case(seed)

    found = least_ahead(case.layout, case.run().orders())

    assert AHEAD <= found <= max(AHEAD, *case.caps)
