"""The backward world's steps where there is a device: the host has nothing to choose, so it runs ahead."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.recompute import recompute_order
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.fbd.backward import RecomputeSchedule, RecomputeStep
from tests.support.one_stage import replace_passes, step_parts

LAYOUT = Layout(stages=1, chunks=1, microbatches=4)
"""Nothing is received: the stage begins and ends the model."""
SLOTS = 2


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> RecomputeSchedule:
    replace_passes(monkeypatch, lambda _: None, LAYOUT.stages)
    schedule = object.__new__(RecomputeSchedule)
    schedule._inputs, schedule._beside = SimpleNamespace(slots=SLOTS), None  # type: ignore[assignment]
    return schedule


def test_a_step_is_launched_ahead_in_the_order_that_is_given(schedule: RecomputeSchedule) -> None:
    step = step_of(schedule, schedule._policy(LAYOUT, 0))

    step.run()

    assert step.ran == list(recompute_order(LAYOUT, ahead=0))  # one stage waits for no gradient


def step_of(schedule: RecomputeSchedule, policy: StagePolicy) -> RecomputeStep:
    messages = PipelineMessages(SimpleNamespace(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    pace = schedule._pace_on_device(policy)
    assert pace is None, "the host waits for its device"
    step = schedule._make_step(**step_parts(LAYOUT, policy, messages, DeferredWgrad(), pace))
    assert isinstance(step, RecomputeStep)
    return step
