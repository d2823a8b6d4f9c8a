"""What a stage's host takes to launch operations, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.choosing import CHOOSING_NS, Host
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.times import equal_times

LAYOUT = Layout(stages=2, chunks=2, microbatches=4, split=True)
TIMES = equal_times(LAYOUT, 2_000_000, 4_000_000, 1_000_000)
"""Of a chunk half as long."""
PASSES_NS = (1_500_000, 1_500_000, 300_000)


def test_each_chunk_is_launched_for_itself_and_choices_are_as_long_ahead() -> None:
    made = Host(passes_ns=PASSES_NS, launch_ns=10).choosing(LAYOUT, TIMES)

    assert np.array_equal(made.host_ns, [[1_500_000] * 4 + [300_000] * 2] * 2)
    assert np.array_equal(made.lead_ns, [[1_500_000 + CHOOSING_NS]] * 2)


def test_without_the_split_a_backward_pass_launches_all() -> None:
    whole = Layout(stages=2, chunks=2, microbatches=4)

    made = Host(passes_ns=PASSES_NS, lead_ns=7).choosing(whole, TIMES)

    assert np.array_equal(made.host_ns, [[1_500_000] * 2 + [1_800_000] * 2] * 2)
    assert made.lead_ns == 7


def test_a_host_that_keeps_up_takes_no_longer_than_its_device() -> None:
    made = Host(passes_ns=PASSES_NS, keeps_up=True).choosing(LAYOUT, TIMES)

    assert np.array_equal(made.host_ns, [[1_000_000] * 2 + [1_500_000] * 2 + [300_000] * 2] * 2)


@pytest.mark.parametrize("passes_ns", [(-1, 0, 0), (0, 0, -1)])
def test_times_are_not_negative(passes_ns: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="no less than no time"):
        Host(passes_ns=passes_ns)
