"""The backward world's steps where there is a device: the host has nothing to choose, so it runs ahead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import schedules

from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.recompute import recompute_order
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.fbd.backward import RecomputeSchedule, RecomputeStep

LAYOUT = Layout(stages=1, chunks=1, microbatches=4)
"""Nothing is received: the stage begins and ends the model."""
SLOTS = 2


class NoPace:
    """As on a GPU. A host that asks it for anything waits for its device."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the host waits for its device: {name}")


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> RecomputeSchedule:
    monkeypatch.setattr(schedules, "forward_step", lambda *_, **__: (torch.zeros(1), 0))
    monkeypatch.setattr(schedules, "backward_step", lambda *_: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0])
    schedule = object.__new__(RecomputeSchedule)
    schedule._inputs, schedule._beside = SimpleNamespace(slots=SLOTS), None  # type: ignore[assignment]
    return schedule


def test_a_step_is_launched_ahead_in_the_order_that_is_given(schedule: RecomputeSchedule) -> None:
    step = step_of(schedule, schedule._policy(LAYOUT, 0))

    step.run()

    assert step.ran == list(recompute_order(LAYOUT, ahead=1))


def step_of(schedule: RecomputeSchedule, policy: StagePolicy) -> RecomputeStep:
    chunk = torch.nn.Identity()
    chunk.model_type = ModelType.encoder_or_decoder  # type: ignore[assignment]
    step = schedule._make_step(
        layout=LAYOUT,
        stage=0,
        policy=policy,
        messages=PipelineMessages(SimpleNamespace(), SimpleNamespace(), SimpleNamespace()),  # type: ignore[arg-type]
        groups=SimpleNamespace(cp=SimpleNamespace(size=lambda: 1)),
        agreement=None,
        wgrad=DeferredWgrad(),
        places=None,
        first=0,
        config=SimpleNamespace(
            timers=None,
            no_sync_func=None,
            param_sync_func=None,
            grad_sync_func=None,
            variable_seq_lengths=False,
            pipeline_dtype=torch.float32,
        ),
        chunks=[chunk],
        forward_step=None,
        data=[iter(())],
        shape=(1,),
        pace=NoPace(),
    )
    assert isinstance(step, RecomputeStep)
    return step
