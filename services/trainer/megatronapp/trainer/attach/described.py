"""What a rank of megatron-core is: its place in the grid, its schedule, and of Megatron-LM's scripts their flags."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import num_microbatches_calculator, parallel_state

from megatronapp.core.trace.values import ParallelSizes, Placement, Schedule
from megatronapp.trainer import parallel
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.torch_transport import TorchTransport
from megatronapp.trainer.worlds import World

SECRET = ("key", "token", "secret", "password")
"""Flags with such a word in their names are not told of."""
MAX_VALUE = 200


@dataclass(frozen=True, kw_only=True)
class Described:
    placement: Placement
    schedule: Schedule
    settings: dict[str, str]
    """Flags of Megatron-LM's scripts that have a value."""
    messages: PipelineMessages | None
    """The port to the neighbouring stages; None: one stage."""


def describe(environment: Environment, world: World, device: torch.device) -> Described:
    place = parallel.placement(environment, _sizes(world), device)
    flags = megatron_lm_flags()
    return Described(
        placement=place,
        schedule=_schedule(place, flags),
        settings=_settings(flags),
        messages=_messages(world),
    )


def megatron_lm_flags() -> Any:
    """The arguments of Megatron-LM's own scripts; None in any other, and before they are read."""
    module = sys.modules.get("megatron.training.global_vars")
    return getattr(module, "_GLOBAL_ARGS", None)


def _sizes(world: World) -> ParallelSizes:
    return ParallelSizes(
        world=world.size,
        tensor=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline=parallel_state.get_pipeline_model_parallel_world_size(),
        data=parallel_state.get_data_parallel_world_size(),
        context=parallel_state.get_context_parallel_world_size(),
        expert=parallel_state.get_expert_model_parallel_world_size(),
        virtual_pipeline=parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
    )


def _schedule(place: Placement, flags: Any) -> Schedule:
    sizes = place.sizes
    name = "none" if sizes.pipeline == 1 else "interleaved" if sizes.virtual_pipeline > 1 else "1f1b"
    known = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR is not None
    return Schedule(
        name=name,
        microbatches=num_microbatches_calculator.get_num_microbatches() if known else 0,
        total_steps=getattr(flags, "train_iters", None) or 0,
        sequence_length=getattr(flags, "seq_length", None) or 0,
        micro_batch_size=getattr(flags, "micro_batch_size", None) or 0,
    )


def _messages(world: World) -> PipelineMessages | None:
    group = parallel_state.get_pipeline_model_parallel_group()
    return PipelineMessages(TorchTransport(group), group, world) if group.size() > 1 else None


def _settings(flags: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in vars(flags).items() if flags is not None else ():
        plain = isinstance(value, bool | int | float | str) and value is not False and value != ""
        if plain and not any(part in SECRET for part in name.split("_")):
            shown = "on" if value is True else str(value)
            found[name.replace("_", "-")] = shown[:MAX_VALUE]
    return found
