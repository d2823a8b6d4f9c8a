"""The growing batch has megatron-core's sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

from megatronapp.core.errors import UsageError
from megatronapp.trainer.batch_ramp import BatchRamp


def training(*ramp: int) -> Any:
    return SimpleNamespace(rampup_batch_size=ramp)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 500), st.integers(0, 600))
def test_sizes_are_those_of_megatron_core(start: int, increment: int, steps: int, samples: int, consumed: int) -> None:
    end = start + increment * steps
    oracle = RampupBatchsizeNumMicroBatchesCalculator(
        rank=1,
        global_batch_size=end,
        micro_batch_size=1,
        data_parallel_size=1,
        decrease_batch_size_if_needed=False,
        start_global_batch_size=start,
        batch_size_increment=increment,
        ramup_samples=samples,
    )
    oracle.update(consumed, consistency_check=False)

    assert BatchRamp.of(training(start, increment, samples), end).size_at(consumed) == oracle.current_global_batch_size


def test_without_the_flag_the_size_stays() -> None:
    ramp = BatchRamp.of(training(), 12)

    assert [ramp.size_at(consumed) for consumed in (0, 5, 1000)] == [12, 12, 12]
    assert list(ramp.sizes) == [12]


@pytest.mark.parametrize(
    ("ramp", "said"),
    [
        ((4, 4), "three numbers"),
        ((16, 4, 10), "does not lead"),
        ((4, 3, 10), "no whole number of"),
        ((0, 4, 9), "lead"),
    ],
)
def test_a_ramp_that_leads_nowhere_is_refused(ramp: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BatchRamp.of(training(*ramp), 8)
