"""MegaFBD's waits and slots, from a step's summary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.metrics import job_labels
from megatronapp.detector.disaggregated_times import MAX_STAGES, slots_held, waits
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.steps import StepTable
from tests.support.simulated import Job, Layout
from tests.unit.detector.whatif.tables import step_table


def table(first: str, second: str, roles: list[str] | None) -> StepTable:
    """Two stages of two ranks each, the second of which waits twice as long. 8 microbatches hold 2 slots each."""
    step = step_table(2, 2, [0.01, 0.02, 0.03, 0.06], microbatches=8)
    rows = replace(step.rows, tokens=np.full(len(step.rows.rank), 16.0))
    ranks = replace(step.ranks, role=None if roles is None else np.array(roles))
    return replace(step, rows=rows, ranks=ranks, operations=(first, second, *step.operations[2:]))


def test_a_stage_waits_as_long_as_its_rank_that_waits_longest() -> None:
    found = waits(table("wait_input", "wait_slot", ["backward"] * 4))

    assert found == pytest.approx(
        {
            ("backward", 0, "forward"): 8 * 0.02,
            ("backward", 1, "forward"): 8 * 0.06,
            ("backward", 0, "slot"): 2 * 8 * 0.02,
            ("backward", 1, "slot"): 2 * 8 * 0.06,
        }
    )


def test_slots_are_counted_when_a_microbatch_begins() -> None:
    roles = ["backward", "backward", "forward", "forward"]

    assert slots_held(table("wait_input", "backward", roles)) == {("backward", 0): 2, ("forward", 1): 2}


def test_ranks_without_a_role_wait_for_none() -> None:
    assert not waits(table("wait_input", "wait_weights", None))
    assert not slots_held(table("wait_input", "wait_weights", ["", "", "else", "else"]))


def test_a_stage_beyond_what_a_role_may_have_is_not_told_of() -> None:
    step = table("wait_input", "wait_weights", ["backward"] * 4)
    far = replace(step, ranks=replace(step.ranks, pipeline=step.ranks.pipeline + MAX_STAGES - 1))

    assert slots_held(far) == {("backward", MAX_STAGES - 1): 2}


def test_a_job_with_roles_has_series_of_its_waits() -> None:
    registry, engines = CollectorRegistry(), Engines()
    Exposition(registry, engines, 16)
    job = Job(Layout(pp=2, dp=2), run="split")
    for message in (*job.hellos(), *job.step(1), *job.step(2), *job.step(3)):
        message.identity.job = "ml/split"
        if message.message.HasField("hello"):
            message.message.hello.placement.role = "forward" if message.identity.rank < 2 else "backward"
        elif message.message.HasField("summary"):
            names = ["wait_weights" if name == "forward" else name for name in message.message.summary.names]
            message.message.summary.names[:] = names
        engines.feed(message)

    for role, stage in (("forward", "0"), ("backward", "1")):
        labels = {**job_labels("ml/split"), "role": role, "stage": stage, "waits_for": "weights"}
        seconds = registry.get_sample_value("megatronapp_fbd_wait_seconds", labels)
        assert seconds is not None
        assert seconds > 0
