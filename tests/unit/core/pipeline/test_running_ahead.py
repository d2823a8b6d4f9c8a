"""How far hosts run ahead: enough for every order, receives no more than the cap, launches no more than it asks for."""

from __future__ import annotations

from itertools import product

import pytest

from megatronapp.core.pipeline import orders, running_ahead
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.running_ahead import MOST_LAUNCHED, RECEIVES_AHEAD, most_launched, receives_ahead
from tests.support.random_pipelines import random_case

STATIC = [
    *(("interleaved", chunks) for chunks in (1, 2, 4)),
    *(("interleaved-zb", chunks) for chunks in (1, 2, 4)),
    ("zb-h1", 1),
    ("zb-h2", 1),
]
FAR_APART = Layout(stages=2, chunks=2, microbatches=16)


def far_apart() -> list[Order]:
    """Stage 0 runs all forward passes of its first chunk before it takes anything."""
    forward, backward = (
        [[Operation(kind, chunk, i) for i in range(16)] for chunk in range(2)] for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    last = [each for lanes in (forward, backward[::-1]) for pair in zip(*lanes, strict=True) for each in pair]
    return [[*forward[0], *forward[1], *backward[1], *backward[0]], last]


@pytest.mark.parametrize(("hint", "chunks"), STATIC)
def test_one_message_and_one_operation_ahead_are_enough_for_static_schedules(
    hint: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_ahead, "RECEIVES_AHEAD", 1)
    monkeypatch.setattr(running_ahead, "MOST_LAUNCHED", 1)
    for stages, rounds in product((2, 4, 8), (1, 2, 4)):
        layout = Layout(stages=stages, chunks=chunks, microbatches=stages * rounds, split=True)
        static = orders.all_stages(hint, layout)

        assert receives_ahead(layout, static) == 1
        assert most_launched(layout, static, 1) == 1


def test_hosts_that_are_far_apart_need_as_many_receives_as_they_are() -> None:
    """Stage 0 sends the 16 of its first chunk before it takes anything. Stage 1, which posts n ahead, goes on until it
    has sent n + 1, and has posted 2 n + 1 by then."""
    assert receives_ahead(FAR_APART, far_apart()) == 8


def test_hosts_that_post_few_receives_must_launch_more_to_post_them() -> None:
    """Stage 1 has posted receives for stage 0's first chunk once it has launched eight operations that take them, the
    last of which is its fifteenth; its device has ended one by then, and waits for what stage 0 sends next."""
    assert most_launched(FAR_APART, far_apart(), 8) == 14
    assert most_launched(FAR_APART, far_apart(), 16) == MOST_LAUNCHED


@pytest.mark.parametrize("seed", range(150))
def test_orders_that_were_chosen_need_no_more_receives_than_the_cap(seed: int) -> None:
    case = random_case(seed)
    chosen = case.run().orders()

    found = receives_ahead(case.layout, chosen)

    assert RECEIVES_AHEAD <= found <= max(RECEIVES_AHEAD, *case.caps)
    assert MOST_LAUNCHED <= most_launched(case.layout, chosen, found) <= max(MOST_LAUNCHED, case.layout.operations)
