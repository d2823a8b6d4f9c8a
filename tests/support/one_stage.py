"""A stage's training step on its own: no ranks, no device, and passes that compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import schedules

from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.running_ahead import RECEIVES_AHEAD
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad


def replace_passes(monkeypatch: pytest.MonkeyPatch, launch: Callable[[Kind], object], stages: int) -> None:
    """megatron-core's passes launch nothing but what `launch` does."""

    def forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, int]:
        launch(Kind.FORWARD)
        return torch.zeros(1), 0

    def backward(*args: Any) -> torch.Tensor:
        launch(Kind.BACKWARD)
        return torch.zeros(1)

    monkeypatch.setattr(schedules, "forward_step", forward)
    monkeypatch.setattr(schedules, "backward_step", backward)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: list(range(stages)))


def step_parts(
    layout: Layout, policy: StagePolicy, messages: PipelineMessages, wgrad: DeferredWgrad, pace: Any
) -> dict[str, Any]:
    """What a Step of the first stage is made of."""
    chunk = torch.nn.Identity()
    chunk.model_type = ModelType.encoder_or_decoder  # type: ignore[assignment]
    config = SimpleNamespace(
        timers=None,
        no_sync_func=None,
        param_sync_func=None,
        grad_sync_func=None,
        variable_seq_lengths=False,
        deallocate_pipeline_outputs=True,
        pipeline_dtype=torch.float32,
    )
    return {
        "layout": layout,
        "stage": 0,
        "policy": policy,
        "messages": messages,
        "groups": SimpleNamespace(cp=SimpleNamespace(size=lambda: 1)),
        "agreement": None,
        "wgrad": wgrad,
        "places": None,
        "first": 0,
        "config": config,
        "chunks": [chunk],
        "forward_step": None,
        "data": [iter(())],
        "shape": (1,),
        "receives_ahead": RECEIVES_AHEAD,
        "pace": pace,
    }
