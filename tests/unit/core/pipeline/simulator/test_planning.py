from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import caps
from megatronapp.core.pipeline.lanes import WHOLE
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links
from megatronapp.core.pipeline.simulator.planning import WORTH, Candidate, make_plan, stock_order
from megatronapp.core.pipeline.simulator.steps import Setting, StepEnd, simulate_steps, with_backward
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


@pytest.mark.parametrize("layout", [Layout(stages=2, chunks=2, microbatches=8), LAYOUT, replace(LAYOUT, chunks=1)])
@pytest.mark.parametrize("overhead", [0.0, 0.03, 0.1])
def test_putting_off_w_of_some_layers_is_no_better_than_of_all_or_of_none(layout: Layout, overhead: float) -> None:
    def step_ns(share: float) -> float:
        """With W of such a share of each chunk's layers put off."""
        of = replace(layout, split=share > 0)
        own = equal_times(layout, 10e6, 13e6 + 7e6 * (1 - share), 7e6 * share)
        hint = "interleaved-zb" if share else stock_order(layout)
        setting = with_backward(replace(QUIET, draws=1), 1 + overhead * share)
        pending = round(WHOLE * share) or WHOLE
        return float(simulate_steps(of, Candidate(of, hint, None).schedule(pending), own, setting).step_ns.mean())

    some = min(step_ns(share) for share in (0.25, 0.5, 0.75))

    assert min(step_ns(0.0), step_ns(1.0)) < some * (1 + WORTH)
