from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.policy import NEVER, places_of
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import run, strict
from megatronapp.core.pipeline.simulator.times import constant_durations, equal_times

F, B, W = Kind


@st.composite
def layouts(draw: st.DrawFn, name: str) -> Layout:
    stages = draw(st.integers(1, 6))
    if name in {"zbv", "dualpipev"}:
        microbatches = draw(st.integers(2 * stages, 4 * stages))
        return Layout(stages=stages, chunks=2, microbatches=microbatches, split=True, placement=Placement.V)
    if name == "interleaved-zb":
        microbatches = stages * draw(st.integers(1, 4))
        return Layout(stages=stages, chunks=draw(st.integers(1, 4)), microbatches=microbatches, split=True)
    if name in {"zb-h1", "zb-h2"}:
        return Layout(stages=stages, microbatches=draw(st.integers(1, 12)), split=True)
    chunks = 1 if name == "1f1b" else draw(st.integers(1, 4))
    return Layout(
        stages=stages, chunks=chunks, microbatches=stages * draw(st.integers(1, 4)), split=draw(st.booleans())
    )


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(sorted(orders.STATIC)))
def test_a_static_schedule_runs_to_its_end(data: st.DataObject, name: str) -> None:
    layout = data.draw(layouts(name))
    durations = constant_durations(layout, equal_times(layout, 30, 20, 10))

    done = run(layout, strict(name, layout, orders.all_stages(name, layout)), durations, wire(layout, Links()))

    assert done.complete


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(sorted(orders.HINTS)))
def test_a_hint_has_every_forward_and_backward_once_in_the_order_of_its_lane(data: st.DataObject, name: str) -> None:
    layout = data.draw(layouts(name))

    for order in orders.all_stages(name, layout):
        places = places_of(layout, order)
        assert len(set(places)) == layout.operations
        assert NEVER not in places


def test_megatron_core_refuses_what_is_refused_here() -> None:
    with pytest.raises(UsageError, match="5 in groups of 2 leave 1"):
        orders.all_stages("interleaved", Layout(stages=2, chunks=2, microbatches=5))
    orders.all_stages("interleaved", Layout(stages=2, chunks=2, microbatches=8), group=3)


def test_zb_h1_of_two_stages_by_hand() -> None:
    first, second = orders.all_stages("zb-h1", Layout(stages=2, microbatches=3, split=True))

    def read(text: str) -> list[Operation]:
        return [Operation(Kind("FBW".index(each[0])), 0, int(each[1])) for each in text.split()]

    assert first == read("F0 F1 B0 W0 F2 B1 W1 B2 W2")
    assert second == read("F0 B0 F1 B1 W0 F2 B2 W1 W2")


@pytest.mark.parametrize(
    ("name", "layout", "said"),
    [
        ("zb-h1", Layout(stages=2, chunks=2, microbatches=4, split=True), "one chunk a stage"),
        ("zb-h2", Layout(stages=2, microbatches=4), "split"),
        ("1f1b", Layout(stages=2, chunks=2, microbatches=4), "interleaved takes several"),
        ("zbv", Layout(stages=2, chunks=2, microbatches=4, split=True), "V placement"),
        ("dualpipev", Layout(stages=4, chunks=2, microbatches=4, split=True, placement=Placement.V), "at least 8"),
        ("interleaved", Layout(stages=4, chunks=2, microbatches=4, placement=Placement.V), "loop placement"),
        ("gpipe", Layout(stages=4, microbatches=4), "no schedule gpipe; there are 1f1b"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_with_a_reason(name: str, layout: Layout, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        orders.all_stages(name, layout)
