"""The order of backward stages that run again what others have run, and that neither waits for ever for the other."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recompute import (
    ON_THE_WAY,
    ahead_with,
    least_slots,
    recompute_order,
    split_where_it_helps,
)

F, B, W = Kind


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    stages, chunks = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    microbatches = draw(st.integers(1, 12)) if chunks == 1 else stages * draw(st.integers(1, 3))
    return Layout(stages=stages, chunks=chunks, microbatches=microbatches, split=draw(st.booleans()))


@given(layouts(), st.integers(0, 3))
def test_each_backward_follows_its_recompute_and_few_are_held(layout: Layout, ahead: int) -> None:
    order = recompute_order(layout, ahead=ahead)

    ran: Counter[tuple[int, int]] = Counter()
    most = 0
    for kind, chunk, microbatch in order:
        assert ran[chunk, microbatch] == kind  # F, then B, then W
        ran[chunk, microbatch] += 1
        most = max(most, sum(count < len(layout.kinds) for count in ran.values()))
    assert len(order) == layout.operations
    assert most <= ahead + 1


@given(layouts())
def test_a_chunks_microbatches_keep_their_order(layout: Layout) -> None:
    order = recompute_order(layout)

    for kind in layout.kinds:
        for chunk in range(layout.chunks):
            lane = [operation.microbatch for operation in order if operation[:2] == (kind, chunk)]
            assert lane == list(range(layout.microbatches))


@dataclass
class Worlds:
    """Both worlds in a random order of events: forward stages that run microbatch after microbatch through their
    layers, and backward stages with their order."""

    layout: Layout
    forward_stages: int
    slots: int
    sent: Counter[int] = field(default_factory=Counter)
    """By part: inputs."""
    backwards: Counter[int] = field(default_factory=Counter)
    """By part."""

    def __post_init__(self) -> None:
        parts = list(range(1, self.layout.parts))
        each = -(-len(parts) // self.forward_stages)
        self.borders = [parts[start : start + each] for start in range(0, len(parts), each)]
        self.passed = [0] * len(self.borders)
        """By forward stage: microbatches that have left it."""
        self.at = [0] * len(self.borders)
        """By forward stage: parts that the running microbatch has been sent to."""
        self.orders = [self._order()[::-1] for _ in range(self.layout.stages)]

    def _order(self) -> Order:
        return recompute_order(self.layout, ahead=ahead_with(self.layout, self.slots))

    def received(self, part: int) -> int:
        return min(self.sent[part], self.backwards[part] + self.slots)

    def forward_can(self, stage: int) -> bool:
        microbatch = self.passed[stage]
        if microbatch == self.layout.microbatches or (stage and self.passed[stage - 1] <= microbatch):
            return False
        part = self.borders[stage][self.at[stage]]
        return self.sent[part] - self.received(part) < ON_THE_WAY

    def forward_runs(self, stage: int) -> None:
        self.sent[self.borders[stage][self.at[stage]]] += 1
        self.at[stage] += 1
        if self.at[stage] == len(self.borders[stage]):
            self.at[stage] = 0
            self.passed[stage] += 1

    def backward_can(self, stage: int) -> bool:
        if not self.orders[stage]:
            return False
        kind, chunk, microbatch = self.orders[stage][-1]
        part = self.layout.part(stage, chunk)
        if kind is W:
            return True
        if kind is F:
            return part == 0 or self.received(part) > microbatch
        return part == self.layout.parts - 1 or self.backwards[part + 1] > microbatch

    def backward_runs(self, stage: int) -> None:
        operation: Operation = self.orders[stage].pop()
        if operation.kind is B:
            self.backwards[self.layout.part(stage, operation.chunk)] += 1

    def end_well(self, draw: random.Random) -> bool:
        """Run until nothing can; whether all was done."""
        while True:
            possible = [(self.forward_runs, stage) for stage in range(len(self.borders)) if self.forward_can(stage)]
            possible += [(self.backward_runs, stage) for stage in range(len(self.orders)) if self.backward_can(stage)]
            if not possible:
                return not any(self.orders)
            run, stage = draw.choice(possible)
            run(stage)


def random_worlds(draw: random.Random, missing_slots: int = 0) -> Worlds:
    stages, chunks = draw.randint(2, 5), draw.randint(1, 3)
    microbatches = draw.randint(1, 10) if chunks == 1 else stages * draw.randint(1, 3)
    layout = Layout(stages=stages, chunks=chunks, microbatches=microbatches, split=draw.random() < 0.5)
    slots = least_slots(layout) - missing_slots
    if not missing_slots:
        slots += draw.choice((0, 0, 1, 5))
    return Worlds(layout, draw.randint(1, layout.parts - 1), slots)


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_with_the_least_slots_both_worlds_always_come_to_their_end(cases: int) -> None:
    draw = random.Random(7)

    stuck = [worlds for worlds in (random_worlds(draw) for _ in range(cases)) if not worlds.end_well(draw)]

    assert stuck == []


def test_with_fewer_slots_they_wait_for_each_other_for_ever() -> None:
    draw = random.Random(7)

    ended = [random_worlds(draw, missing_slots=1).end_well(draw) for _ in range(200)]

    assert not any(ended)


@pytest.mark.parametrize(
    ("stages", "chunks", "least"), [(2, 1, 1), (5, 1, 1), (2, 2, 1), (3, 3, 1), (4, 2, 2), (5, 2, 3), (8, 4, 6)]
)
def test_one_slot_is_enough_but_for_long_groups_of_microbatches(stages: int, chunks: int, least: int) -> None:
    assert least_slots(Layout(stages=stages, chunks=chunks, microbatches=2 * stages)) == least


def test_w_follows_b_where_a_stage_waits_for_it_and_nothing_is_hidden_behind_w() -> None:
    pipeline = Layout(stages=2, chunks=1, microbatches=2)

    order = recompute_order(split_where_it_helps(pipeline, 1, Mode.INPUT))

    assert [f"{kind.letter}{microbatch}" for kind, _, microbatch in order] == ["F0", "F1", "B0", "W0", "B1", "W1"]
    assert not split_where_it_helps(pipeline, 2, Mode.INPUT).split
    assert not split_where_it_helps(pipeline, 1, Mode.LAYERS).split
    assert not split_where_it_helps(Layout(stages=1, microbatches=2), 1, Mode.LINEARS).split


def test_the_next_part_is_run_ahead_where_it_has_a_slot_of_its_own() -> None:
    layout = Layout(stages=2, chunks=1, microbatches=4)

    assert [ahead_with(layout, slots) for slots in (1, 2, 3)] == [0, 1, 1]


def test_one_stage_alone_has_no_gradient_to_wait_for_and_does_not_run_ahead() -> None:
    assert ahead_with(Layout(stages=1, microbatches=4), slots=3) == 0
