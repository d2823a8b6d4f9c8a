"""An optimizer on the host steps as torch's AdamW does, and takes its state."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch

from megatronapp.trainer.host_optimizer import HostAdam

SIZES = (6, 3, 3)


def groups() -> list[dict[str, Any]]:
    """The first weight decays, the others don't."""
    first, *others = (torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in SIZES)
    return [
        {"params": [first], "lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},
        {"params": others, "lr": 0.2, "weight_decay": 0.0, "betas": (0.9, 0.95), "eps": 1e-8},
    ]


def weights(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def step(optimizer: torch.optim.Optimizer, numbers: Sequence[int]) -> None:
    for number in numbers:
        optimizer.param_groups[0]["lr"] = 0.1 / number
        for weight in weights(optimizer):
            weight.grad = torch.full_like(weight, 0.5 * number)
        optimizer.step()


def assert_alike(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_it_steps_as_torch_does(part: float) -> None:
    ours, theirs = HostAdam(groups(), part), torch.optim.AdamW(groups())

    step(ours, range(1, 5))
    step(theirs, range(1, 5))

    assert_alike(ours, theirs)


def test_it_goes_on_from_the_state_of_torchs_and_torchs_from_its_own() -> None:
    theirs, ours, again = torch.optim.AdamW(groups()), HostAdam(groups()), torch.optim.AdamW(groups())
    step(theirs, [1, 2])
    step(ours, [1, 2])
    states = deepcopy((theirs.state_dict(), ours.state_dict()))
    ours.load_state_dict(states[0])
    again.load_state_dict(states[1])
    for mine, weight in zip(weights(again), weights(theirs), strict=True):
        mine.data.copy_(weight)

    for each in (theirs, ours, again):
        step(each, [3])

    assert_alike(ours, theirs)
    assert_alike(again, theirs)


def test_a_weight_without_a_gradient_stays() -> None:
    ours = HostAdam(groups())
    first, *_ = weights(ours)
    first.grad = torch.ones_like(first)
    ours.step()

    assert [bool(ours.state[weight]["step"]) for weight in weights(ours)] == [True, False, False]


@pytest.mark.parametrize(("part", "held"), [(1.0, 3), (0.75, 2), (0.5, 1), (0.1, 1)])
def test_the_first_weights_up_to_a_part_of_all_wait_on_the_host(part: float, held: int) -> None:
    ours = HostAdam(groups(), part)

    assert list(ours._copies) == weights(ours)[:held]
