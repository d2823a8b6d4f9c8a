"""A stage's own choices, as a rank makes them."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy, places_of
from tests.support.random_pipelines import random_case

F, B, W = Kind


def step(layout: Layout, policies: list[StagePolicy]) -> list[list[Operation]]:
    """Stages take turns; messages arrive at once. Returns what each ran."""
    ran: list[list[Operation]] = [[] for _ in policies]
    idle = 0
    turns = deque(range(layout.stages))
    while idle < layout.stages:
        stage = turns[0]
        turns.rotate(-1)
        operation = policies[stage].choose()
        if operation is None:
            idle += 1
            continue
        idle = 0
        policies[stage].start(operation)
        policies[stage].end(operation)
        ran[stage].append(operation)
        following = layout.following(stage, operation.kind, operation.chunk)
        if following is not None and following[0] != stage:
            policies[following[0]].arrived(Operation(following[1], following[2], operation.microbatch))
    return ran


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10_000))
def test_stages_that_choose_for_themselves_come_to_the_end_under_their_caps(seed: int) -> None:
    case = random_case(seed)
    stages = range(case.layout.stages)
    policies = [StagePolicy(case.layout, stage, case.hints[stage], cap=case.caps[stage]) for stage in stages]

    ran = step(case.layout, policies)

    assert all(policy.finished for policy in policies)
    assert all(policy.peak <= policy.cap for policy in policies)
    for order in ran:
        places_of(case.layout, order)  # lanes kept their order


def test_a_strict_stage_waits_for_the_next_operation_of_its_order() -> None:
    layout = Layout(stages=2, microbatches=2)
    policy = StagePolicy(layout, 0, orders.interleaved(layout, 0), cap=1, strict=True)
    for microbatch in range(2):
        assert policy.choose() == Operation(F, 0, microbatch)
        policy.start(Operation(F, 0, microbatch))
        policy.end(Operation(F, 0, microbatch))
    policy.arrived(Operation(B, 0, 1))

    assert policy.choose() is None
    policy.arrived(Operation(B, 0, 0))
    assert policy.choose() == Operation(B, 0, 0)


def test_wgrad_without_a_place_fills_what_would_be_idle() -> None:
    layout = Layout(stages=2, microbatches=2, split=True)
    policy = StagePolicy(layout, 1, orders.interleaved(layout, 1), cap=2)
    policy.arrived(Operation(F, 0, 0))
    ran = []
    while (operation := policy.choose()) is not None:
        policy.start(operation)
        policy.end(operation)
        ran.append(operation)
        if operation == Operation(B, 0, 0):
            policy.arrived(Operation(F, 0, 1))

    assert [str(each)[:2] for each in ran] == ["F0", "B0", "F1", "B1", "W0", "W1"]


def test_what_is_not_at_the_head_of_its_lane_cannot_be_started() -> None:
    layout = Layout(stages=1, microbatches=2)
    policy = StagePolicy(layout, 0, orders.interleaved(layout, 0), cap=2)

    with pytest.raises(ValueError, match="head of its lane"):
        policy.start(Operation(F, 0, 1))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([Operation(F, 0, 0)], "lacks B0 of chunk 0"),
        ([Operation(F, 0, 0), Operation(B, 0, 0), Operation(B, 0, 0)], "twice"),
        ([Operation(F, 1, 0)], "has F0 of chunk 1, which this pipeline has not"),
        ([Operation(F, 0, 0), Operation(W, 0, 0)], "has W0"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(order: list[Operation], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        places_of(Layout(stages=1, microbatches=1), order)
