"""Bubble and the time of decisions, from a step's summary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.metrics import job_labels
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.pipeline_times import bubble_ratio, decision_seconds, stock_peak_activations
from tests.support.simulated import Job, Layout
from tests.unit.detector.whatif.tables import WGRAD, step_table

TWO_STAGES = step_table(2, 1, [0.03, 0.04], microbatches=8, split=True)  # of a step of one second


def test_the_bubble_is_what_forward_backward_and_w_leave_of_the_step() -> None:
    assert bubble_ratio(TWO_STAGES) == pytest.approx(1 - (8 * 3 * 0.03 + 8 * 3 * 0.04) / 2)


def test_gradient_sync_and_optimizer_are_not_of_the_pipeline() -> None:
    operations = ("forward", "backward", "optimizer", "all_reduce", "grad_sync")
    table = replace(TWO_STAGES, operations=operations)  # what was W is gradient sync now: 8 × its time

    assert bubble_ratio(table) == pytest.approx(
        np.mean([1 - 8 * 2 * seconds / (1 - 8 * seconds) for seconds in (0.03, 0.04)])
    )


def test_without_a_pipeline_or_in_an_unusual_step_there_is_no_bubble() -> None:
    assert bubble_ratio(step_table(1, 2, [0.03, 0.03])) is None
    assert bubble_ratio(replace(TWO_STAGES, phases=frozenset({1}))) is None
    assert bubble_ratio(replace(TWO_STAGES, duration=np.full(2, np.nan))) is None


def test_a_decision_takes_what_it_takes_the_slowest_stage() -> None:
    names = [*TWO_STAGES.operations]
    names[WGRAD] = "decide"

    assert decision_seconds(replace(TWO_STAGES, operations=tuple(names))) == pytest.approx(0.04)
    assert decision_seconds(TWO_STAGES) is None


def test_a_job_with_a_pipeline_has_a_series_of_its_bubble_and_one_without_has_none() -> None:
    registry, engines = CollectorRegistry(), Engines()
    Exposition(registry, engines, 16)
    for stages, run in ((2, "pipelined"), (1, "flat")):
        job = Job(Layout(pp=stages, dp=2), run=run)
        for message in (*job.hellos(), *job.step(1), *job.step(2), *job.step(3)):
            message.identity.job = f"ml/{run}"
            engines.feed(message)

    ratio = registry.get_sample_value("megatronapp_pipeline_bubble_ratio", job_labels(engines.running["pipelined"].job))
    assert ratio is not None
    assert 0 < ratio < 1
    assert registry.get_sample_value("megatronapp_pipeline_bubble_ratio", job_labels("ml/flat")) is None


def test_megatron_cores_own_schedule_tells_what_a_stage_would_hold() -> None:
    assert stock_peak_activations(replace(TWO_STAGES, virtual_stages=2)) == 5
    assert stock_peak_activations(TWO_STAGES) == 2


def test_without_a_schedule_nothing_is_said_of_what_it_would_hold() -> None:
    assert stock_peak_activations(step_table(1, 2, [0.03, 0.03])) is None
    assert stock_peak_activations(replace(TWO_STAGES, microbatches=1 << 40)) is None


def test_activations_in_flight_have_a_series_beside_those_of_megatron_cores_schedule() -> None:
    registry, engines = CollectorRegistry(), Engines()
    Exposition(registry, engines, 16)
    job = Job(Layout(pp=2, dp=2), run="pipelined")
    for message in (*job.hellos(), *job.step(1), *job.step(2), *job.step(3)):
        message.identity.job = "ml/pipelined"
        if message.message.HasField("summary"):
            message.message.summary.peak_activations = 3 if message.identity.rank == 0 else 2
        engines.feed(message)

    labels = job_labels("ml/pipelined")
    assert registry.get_sample_value("megatronapp_pipeline_peak_activations", labels) == 3
    assert registry.get_sample_value("megatronapp_pipeline_stock_peak_activations", labels) == 2
