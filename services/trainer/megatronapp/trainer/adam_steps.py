"""How many steps Adam has made. torch's counts them by parameter, Transformer Engine's and Apex's by group, and
megatron-core's optimizers save and load what the Adam of their own environment has: a checkpoint has the number beside
the optimizer's state, and each Adam gets it where it counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from megatronapp.trainer.optimizer_parts import parts_of

SAVED = "optimizer_steps"
"""The number's name in a checkpoint. Earlier versions have it within the optimizer's state alone."""


def counts_by_parameter(adam: Any) -> bool:
    return isinstance(adam, torch.optim.Adam)


def counts_by_group(adam: Any) -> bool:
    """Of Transformer Engine or Apex, of which neither need be installed."""
    return type(adam).__name__ == "FusedAdam"


def is_adam(part: Any) -> bool:
    """part: of a chained optimizer."""
    adam = getattr(part, "optimizer", None)
    return counts_by_parameter(adam) or counts_by_group(adam)


def steps_of(optimizer: Any) -> int | None:
    """None: it has made none, or counts none."""
    counted = {int(step) for part in parts_of(optimizer) if is_adam(part) for step in _counted(part.optimizer)}
    return counted.pop() if len(counted) == 1 else None


def _counted(adam: Any) -> Iterator[Any]:
    counters = adam.param_groups if counts_by_group(adam) else adam.state.values()
    return (each["step"] for each in counters if "step" in each)


def saved_steps(common: Mapping[str, Any]) -> int | None:
    """common: what all ranks load of a checkpoint. None: it is not known."""
    if common.get(SAVED) is not None:
        return int(common[SAVED])
    for name in ("common_step", "step"):  # what a group has beside the former was loaded once, and not counted on
        if found := {int(step) for step in found_in(common.get("optimizer"), name)}:
            return found.pop() if len(found) == 1 else None
    return None


def found_in(saved: Any, name: str) -> Iterator[Any]:
    """All values of that name, wherever they are."""
    if isinstance(saved, Mapping) and name in saved:
        yield saved[name]
    if isinstance(saved, Mapping | list):
        for each in saved.values() if isinstance(saved, Mapping) else saved:
            yield from found_in(each, name)


def fit_to_adam(optimizer: Any, loaded: dict[Any, Any], steps: int) -> None:
    """Change what is to be loaded into the form that this optimizer's Adam has, whichever Adam saved it."""
    parts = parts_of(optimizer)
    for index, part in enumerate(parts):
        if is_adam(part):
            saved = loaded[index] if len(parts) > 1 else loaded
            _fit_part(part, saved.get("optimizer", saved), steps)


def _fit_part(part: Any, saved: dict[str, Any], steps: int) -> None:
    by_group = counts_by_group(part.optimizer)
    for group in saved["param_groups"]:
        group.update({name: value for name, value in part.optimizer.defaults.items() if name not in group})
        group.pop("step", None)
        if by_group or isinstance(part, DistributedOptimizer):
            group["step"] = steps
    state = saved.get("state", {})
    state.pop("common_step", None)
    if not by_group and state:
        state["common_step"] = torch.tensor(float(steps))


def set_steps(optimizer: Any, steps: int) -> None:
    """Each parameter gets a counter of its own: what megatron-core has loaded is one for all, which each would count
    up."""
    for part in parts_of(optimizer):
        if not is_adam(part):
            continue
        adam = part.optimizer
        for group in adam.param_groups:
            group.pop("step", None)
            if counts_by_group(adam):
                group["step"] = steps
        if counts_by_parameter(adam):
            for state in adam.state.values():
                state["step"] = torch.tensor(float(steps))
