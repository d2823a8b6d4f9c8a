"""The state of an optimizer that is built otherwise than the one that was saved: sharded over data-parallel ranks
(--use-distributed-optimizer) or not, of one part or, with experts on ranks of their own, of two. Checkpoints have it by
parameter, in the parameter's shape: they differ in names, and in where the number of steps stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer import adam_steps
from megatronapp.trainer.optimizer_parts import parts_of
from megatronapp.trainer.torch_dist import read_metadata

MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHT = "weight"
"""In full precision."""
_SPELLINGS = {**{name: (name,) for name in MOMENTS}, WEIGHT: ("fp32_param", "param")}
_STATE = "optimizer.state."

Tensors = Mapping[str, torch.Tensor]
"""Of one parameter: its moments, and its weights in full precision where they are stored."""


def is_needed(optimizer: Any, common: Mapping[str, Any], *, distributed: bool) -> bool:
    """Whether the saved optimizer was built otherwise than this one."""
    saved = common["optimizer"]
    parts = len(saved) if isinstance(saved, Mapping) and 0 in saved else 1
    return bool(common["distributed_optimizer"]) != distributed or parts != len(parts_of(optimizer))


def load(optimizer: Any, weights: Mapping[str, Any], checkpoint: Path, common: Mapping[str, Any]) -> None:
    """`weights`: the model's sharded state, `common`: what all ranks load. The model's weights are loaded before; every
    rank calls it. Raises DataError and UsageError."""
    parts = parts_of(optimizer)
    if not all(map(adam_steps.is_adam, parts)):
        raise UsageError(
            f"{checkpoint} was saved with another --use-distributed-optimizer or --expert-model-parallel-size, which "
            "only an Adam can take over: start the same way, or give --no-load-optim"
        )
    loaded = _read(weights, checkpoint)
    steps = adam_steps.saved_steps(common)
    if steps is None:
        raise DataError(f"{checkpoint}: its optimizer's number of steps is not known: give --no-load-optim")
    optimizer.reload_model_params()
    for part in parts:
        _fill(part, loaded)
        if getattr(part, "grad_scaler", None) is not None:
            for saved in adam_steps.found_in(common["optimizer"], "grad_scaler"):
                part.grad_scaler.load_state_dict(saved)
    adam_steps.set_steps(optimizer, steps)


def _read(weights: Mapping[str, Any], checkpoint: Path) -> dict[torch.Tensor, Tensors]:
    """By parameter of the model. Raises DataError."""
    stored = {key.partition(_STATE)[2]: key for key in read_metadata(checkpoint).state_dict_metadata if _STATE in key}
    wanted: dict[str, Any] = {}
    parameters: list[torch.Tensor] = []
    for sharded in nested_values(extract_sharded_tensors_and_factories(dict(weights))[0]):
        if not (isinstance(sharded.data, torch.nn.Parameter) and sharded.data.requires_grad):
            continue
        wanted[str(len(parameters))] = tensors = {
            name: make_sharded_optimizer_tensor(
                sharded, torch.empty_like(sharded.data, dtype=torch.float32), key.removesuffix(f".{sharded.key}")
            )
            for name, spellings in _SPELLINGS.items()
            for spelling in spellings
            if (key := stored.get(f"{spelling}.{sharded.key}")) is not None
        }
        if not tensors.keys() >= set(MOMENTS):
            raise DataError(f"{checkpoint} holds no optimizer state of {sharded.key}: give --no-load-optim")
        parameters.append(sharded.data)
    found = dist_checkpointing.load(wanted, str(checkpoint))
    return {parameter: found[str(index)] for index, parameter in enumerate(parameters)}


@torch.no_grad()
def _fill(part: Any, loaded: Mapping[torch.Tensor, Tensors]) -> None:
    """The optimizer's own tensors, of which each is a parameter of the model or, sharded, a span of one."""
    for parameter, main, cut in _mains(part):
        tensors = loaded[parameter]
        place = part.optimizer.state.get(main, {}).get(MOMENTS[0], main).device  # the host, with HostAdam
        part.optimizer.state[main] = {name: cut(tensors[name]).to(place).clone() for name in MOMENTS}
        if WEIGHT in tensors:
            main.copy_(cut(tensors[WEIGHT]))


def _mains(part: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]]:
    """Of each parameter: the model's, the optimizer's, and what of the whole tensor is the latter's."""
    if isinstance(part, DistributedOptimizer):
        for parameter, (group, order) in part.model_param_group_index_map.items():
            span = part._get_model_param_range_map(parameter)["param"]
            yield parameter, part.optimizer.param_groups[group]["params"][order], _span(span.start, span.end)
        return
    narrow: Sequence[Sequence[torch.Tensor]] = getattr(part, "float16_groups", [])
    wide: Sequence[Sequence[torch.Tensor]] = getattr(part, "fp32_from_float16_groups", [])
    own = {
        id(main): parameter
        for group, mains in zip(narrow, wide, strict=True)
        for parameter, main in zip(group, mains, strict=True)
    }
    for group in part.optimizer.param_groups:
        for main in group["params"]:
            yield own.get(id(main), main), main, lambda tensor: tensor


def _span(start: int, end: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.flatten()[start:end]
