from __future__ import annotations

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import dynamic, run
from megatronapp.core.pipeline.simulator.times import constant_durations, equal_times


@pytest.mark.parametrize(("stages", "chunks", "peak"), [(4, 1, 4), (8, 1, 8), (8, 2, 23), (4, 2, 11), (2, 2, 5)])
def test_stocks_largest_peak_is_that_of_its_first_stage(stages: int, chunks: int, peak: int) -> None:
    layout = Layout(stages=stages, chunks=chunks, microbatches=4 * stages)

    assert caps.stock_cap(layout) == peak
    assert max(caps.peak(orders.interleaved(layout, stage)) for stage in range(stages)) == peak


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_an_activation_whose_w_is_pending_counts(stages: int) -> None:
    layout = Layout(stages=stages, microbatches=4 * stages, split=True)
    peaks = [[caps.peak(order(layout, stage)) for stage in range(stages)] for order in (orders.zb_h1, orders.zb_h2)]

    assert peaks == [[stages] * stages, [2 * stages - 1] * stages]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_1f1b_holds_what_littles_law_asks_for(stages: int) -> None:
    layout = Layout(stages=stages, microbatches=32)

    assert caps.littles_bound(layout, equal_times(layout, 10, 10, 10), 0) == pytest.approx(stages)


def test_latency_asks_for_more_in_flight() -> None:
    layout = Layout(stages=8, microbatches=32)
    times = equal_times(layout, 10, 10, 10)

    assert caps.littles_bound(layout, times, 5) == pytest.approx(8 + 2 * 7 * 5 / 30)
    assert caps.least_cap(layout, times, 5) == 11


@pytest.mark.parametrize(("chunks", "split", "latency"), [(1, False, 0), (1, True, 0), (2, True, 0), (1, True, 20)])
def test_a_cap_below_the_bound_is_slower(chunks: int, split: bool, latency: int) -> None:
    layout = Layout(stages=8, chunks=chunks, microbatches=64, split=split)
    times = equal_times(layout, 3000, 3000, 3000)
    least = caps.least_cap(layout, times, latency)
    durations = constant_durations(layout, times)
    hints = orders.all_stages("interleaved", layout)

    def seconds(cap: int) -> int:
        return run(
            layout, dynamic("", layout, hints, [cap] * 8), durations, wire(layout, Links(latency_ns=latency))
        ).end_ns

    assert seconds(least - 2) > 1.1 * seconds(caps.stock_cap(layout) + 4)


def test_a_cap_that_may_stop_for_ever_is_refused_with_the_figure() -> None:
    with pytest.raises(UsageError, match="with 4 chunks a stage it must be at least 4"):
        caps.checked_cap(Layout(stages=2, chunks=4, microbatches=8), 3)


def test_a_cap_that_costs_pace_is_told() -> None:
    assert caps.too_small(8, 8) is None
    assert "raise it to 12" in str(caps.too_small(8, 12))
