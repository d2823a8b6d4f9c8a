"""What megatron-core's optimizers keep of a parameter, and which stretch of it this rank has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from megatronapp.trainer.optimizer_parts import parts_of

STATES = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""By the optimizer's name; others have none that is known."""
MAIN = "param"
"""The copy in float32 that the optimizer steps, where the model computes in less."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of one state of one parameter, flat: this rank's is one of `parts` and begins at `first`."""

    name: str
    part: int
    parts: int
    first: int
    read: Callable[[], torch.Tensor | None]
    """None: not there yet."""


class OptimizerStates:
    """Of a rank's optimizer. What is read is what the optimizer has when it is read."""

    def __init__(self, optimizer: Any) -> None:
        self._owners = {
            parameter: part for part in parts_of(optimizer) for parameter in _parameters(part) if _known(part)
        }

    def of(self, parameter: torch.nn.Parameter) -> Iterator[Stretch]:
        part = self._owners.get(parameter)
        if part is None:
            return
        rank, ranks, first = _stretch(part, parameter)
        names = STATES.get(part.config.optimizer, ())
        for name in names if parameter.dtype is torch.float32 else (MAIN, *names):
            yield Stretch(name, rank, ranks, first, partial(_read, part, parameter, name))


def _known(part: Any) -> bool:
    return getattr(part, "optimizer", None) is not None and getattr(part, "config", None) is not None


def _parameters(part: Any) -> Iterator[torch.nn.Parameter]:
    """The model's, of which the optimizer may have copies or stretches."""
    if isinstance(part, DistributedOptimizer):
        for buffer in part.buffers:
            yield from buffer.params
        return
    copied = [parameter for group in getattr(part, "float16_groups", ()) for parameter in group]
    mains = {id(parameter.main_param) for parameter in copied}
    yield from copied
    for group in part.param_groups:
        yield from (parameter for parameter in group["params"] if id(parameter) not in mains)


def _stretch(part: Any, parameter: torch.nn.Parameter) -> tuple[int, int, int]:
    """(this rank's part, of how many, where it begins)."""
    if not isinstance(part, DistributedOptimizer):
        return 0, 1, 0
    group = part.data_parallel_group
    own = part._get_model_param_range_map(parameter)["param"].start if _has(part, parameter) else 0
    return dist.get_rank(group), dist.get_world_size(group), own


def _read(part: Any, parameter: torch.nn.Parameter, name: str) -> torch.Tensor | None:
    main = getattr(parameter, "main_param", parameter)
    if isinstance(part, DistributedOptimizer):
        if not _has(part, parameter):
            return torch.empty(0, device=parameter.device)
        at, order = part.model_param_group_index_map[parameter]
        main = part.optimizer.param_groups[at]["params"][order]
    found = main if name == MAIN else part.optimizer.state.get(main, {}).get(name)
    return found.to(parameter.device) if isinstance(found, torch.Tensor) else None  # it may wait on the host


def _has(part: Any, parameter: torch.nn.Parameter) -> bool:
    """Whether some of it is this rank's."""
    return parameter in part.model_param_group_index_map
