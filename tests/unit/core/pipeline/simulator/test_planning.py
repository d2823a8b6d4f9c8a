from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import caps
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links
from megatronapp.core.pipeline.simulator.planning import WORTH, make_plan
from megatronapp.core.pipeline.simulator.steps import Setting, StepEnd
from megatronapp.core.pipeline.simulator.times import Variation, equal_times

LAYOUT = Layout(stages=4, chunks=2, microbatches=16)
QUIET = Setting(variation=Variation(), links=Links(latency_ns=10_000), end=StepEnd(), draws=2)


def times(layout: Layout = LAYOUT):
    return equal_times(layout, 10e6, 10e6, 10e6)


def test_on_a_quiet_machine_the_split_is_what_pays() -> None:
    made = make_plan([LAYOUT], [times()], QUIET)

    assert made.chosen.candidate.layout.split
    assert 1.04 < made.gain < 1.08
    assert made.chosen.peak <= caps.stock_cap(LAYOUT)


def test_where_the_split_costs_more_than_it_gains_stock_is_run() -> None:
    made = make_plan([LAYOUT], [times()], QUIET, split_overhead=0.3)

    assert made.chosen == made.stock
    assert made.gain == 1


def test_late_messages_ask_for_choices_while_running() -> None:
    late = replace(QUIET, variation=Variation(late_ratio=0.05, late_ns=30_000_000), draws=5)

    made = make_plan([LAYOUT], [times()], late)

    assert made.chosen.candidate.cap is not None
    assert made.gain > 1.15


def test_what_holds_more_than_the_limit_is_not_chosen_even_if_stock_does_not_fit() -> None:
    made = make_plan([LAYOUT], [times()], QUIET, cap_limit=8)

    assert made.stock.peak == 11
    assert made.chosen.peak <= 8
    assert all(each.peak <= 8 or each == made.stock for each in made.scored)


def test_the_fastest_stands_first_and_nothing_much_faster_than_the_chosen_was_left() -> None:
    made = make_plan([LAYOUT, replace(LAYOUT, chunks=1)], [times(), times(replace(LAYOUT, chunks=1))], QUIET)

    speeds = [each.step_ns for each in made.scored]
    assert speeds == sorted(speeds)
    assert made.chosen.step_ns <= speeds[0] / (1 - WORTH)
    assert {each.candidate.layout.chunks for each in made.scored} == {1, 2}


def test_a_limit_below_anything_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing fits into 1 activations; a pipeline of this layout holds at least 2"):
        make_plan([LAYOUT], [times()], QUIET, cap_limit=1)
