"""Gradients that are reduced beside the last backward passes: who waits there for a slow rank is not slow itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from megatronapp.core.findings import Kind
from megatronapp.core.trace import columns
from megatronapp.v1 import trace_pb2
from tests.support.detecting import detect
from tests.support.simulated import GPU, HOST_BOUND, NAMES, Fault, Job, Layout, NoiseModel

ONSET, STEPS, SLOWER = 36, 100, 1.5
TRANSFER_SECONDS = 0.002
PARTS = {
    "count": "starved_count",
    "duration_sum_ns": "starved_sum_ns",
    "tokens": "starved_tokens",
    "length_squares": "starved_length_squares",
}


@dataclasses.dataclass
class Overlapped(Job):
    """What a rank would wait for in the reduction it waits for in the last backward pass."""

    marked: bool = False
    """That pass is marked as starved: its host had enqueued all of it long before its end, and nothing behind it."""

    def _hello(self, rank: int) -> trace_pb2.Hello:
        hello = super()._hello(rank)
        hello.recipe.settings.add(name="overlap-grad-reduce", value="on")
        return hello

    def _summary(self, step: int, rank: int, row: dict[str, float]) -> trace_pb2.StepSummary:
        waited_ns = int((row["reduce"] - TRANSFER_SECONDS) * 1e9)
        whole = super()._summary(step, rank, {**row, "reduce": TRANSFER_SECONDS})
        table = {name: np.array(column) for name, column in columns.summary_columns(whole).items()}
        last = table["name"].astype(int).tolist().index(NAMES.index("backward"))
        if self.marked and not table["starved_count"][last]:
            for whole_of, part in PARTS.items():
                table[part][last] = table[whole_of][last] // table["count"][last]
        for name in ("duration_sum_ns", "duration_max_ns"):
            table[name][last] += waited_ns
        if table["starved_count"][last]:
            table["starved_sum_ns"][last] += waited_ns
        summary = trace_pb2.StepSummary(step=step, duration_ns=whole.duration_ns, names=NAMES, cpu_ns=whole.cpu_ns)
        columns.fill_summary(summary, table)
        return summary


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("noise", [GPU, HOST_BOUND], ids=["bound by devices", "bound by hosts"])
def test_who_waits_for_a_slow_rank_in_its_last_pass_is_not_slow(noise: NoiseModel, marked: bool) -> None:
    faults = (Fault("compute", (1,), ONSET, 2 * SLOWER if noise is HOST_BOUND else SLOWER),)
    job = Overlapped(Layout(pp=1, dp=2), noise, faults, seed=1, marked=marked)

    [finding] = detect(job, STEPS).paged()

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (1,))


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("microbatches", [1, pytest.param(2, marks=pytest.mark.scale), 8])
def test_how_slow_a_rank_is_shows_in_the_passes_that_nobody_waits_in(microbatches: int, marked: bool) -> None:
    """Of a step with one microbatch that is its forward pass."""
    job = Overlapped(
        Layout(pp=1, dp=2, microbatches=microbatches), faults=(Fault("compute", (1,), ONSET, SLOWER),), seed=2
    )

    [finding] = detect(job, STEPS).paged()

    assert finding.effect_ratio == pytest.approx(SLOWER, rel=0.03)
    assert finding.since_step == ONSET
