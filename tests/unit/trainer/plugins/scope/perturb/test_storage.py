"""Weights that are held: disturbed while the model computes, and the true ones again after that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatronapp.trainer.plugins.scope.perturb.plan import Plan
from megatronapp.trainer.plugins.scope.perturb.storage import HeldWeights
from megatronapp.trainer.plugins.scope.weights import Weight

NOISE = {"place": "storage", "site": "*.weight", "kind": "noise1", "coefficient": 1.0}


def held(*wishes: dict[str, Any], **plan: Any) -> tuple[HeldWeights, torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.arange(12.0).view(4, 3))
    other = torch.nn.Parameter(torch.ones(3))
    made = HeldWeights(
        [
            Weight("layers.2.mlp.linear_fc1.weight", 2, parameter, gated=False),
            Weight("layers.2.bias", 2, other, gated=False),
        ],
        replica=0,
    )
    made.set(Plan.parse({"perturbations": list(wishes), **plan}).perturbations)
    return made, parameter


def test_the_true_weights_come_back_bit_for_bit() -> None:
    made, parameter = held(NOISE)
    true = parameter.detach().clone()

    assert made.hold(1)
    assert not torch.equal(parameter, true)
    made.release()

    assert torch.equal(parameter, true)


def test_each_step_is_disturbed_alike_and_the_optimizer_goes_on_with_the_true_weights() -> None:
    made, parameter = held(NOISE)
    noises = []
    for step in (1, 2):
        true = parameter.detach().clone()
        made.hold(step)
        noises.append(parameter.detach() - true)
        made.release()
        parameter.data.add_(1.0)  # the optimizer

    torch.testing.assert_close(noises[0], noises[1])
    assert torch.equal(parameter, torch.arange(12.0).view(4, 3) + 2)


def test_drawn_anew_each_step_has_noise_of_its_own() -> None:
    made, parameter = held({**NOISE, "redraw": True})
    disturbed = []
    for step in (1, 2):
        made.hold(step)
        disturbed.append(parameter.detach().clone())
        made.release()

    assert not torch.equal(*disturbed)


@pytest.mark.parametrize(("keep", "changed"), [(False, False), (True, True)])
def test_a_checkpoint_holds_disturbed_weights_only_where_asked(keep: bool, changed: bool) -> None:
    made, parameter = held({**NOISE, "keep_in_checkpoints": keep})
    true = parameter.detach().clone()

    made.hold(1, in_checkpoint=True)

    assert torch.equal(parameter, true) is not changed


@pytest.mark.parametrize(
    ("wish", "plan"),
    [
        ({**NOISE, "steps": "5:"}, {}),
        ({**NOISE, "layers": "0"}, {}),
        ({**NOISE, "site": "*.linear_proj.weight"}, {}),
        (NOISE, {"replica": 1}),
        ({**NOISE, "off": True}, {}),
    ],
)
def test_what_is_not_chosen_stays(wish: dict[str, Any], plan: dict[str, Any]) -> None:
    made, parameter = held(wish, **plan)
    true = parameter.detach().clone()

    made.hold(1)

    assert torch.equal(parameter, true)


def test_channels_are_rows() -> None:
    made, parameter = held({**NOISE, "kind": "zero", "channels": "1,3"})

    made.hold(1)

    assert parameter.detach().any(1).tolist() == [True, False, True, False]
