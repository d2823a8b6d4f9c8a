"""Forward ranks on CPUs. Here all ranks are on CPUs; tests/gpu/test_fbd.py has backward ranks on GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Self

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.disaggregated import Case

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 5


class OtherFirstWeights(Plugin):
    """Forward ranks begin with other weights, as CPUs draw others than GPUs."""

    name = "other_first_weights"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.placement.role == Role.FORWARD else None

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for parameter in (each for chunk in chunks for each in chunk.parameters()):
            parameter.data.zero_()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("", pipeline=1, linears=True), id="linears"),
        pytest.param(Case("", forward_pipeline=1), id="input", marks=pytest.mark.long),
    ],
)
def test_forward_on_cpus_begins_with_the_backward_ranks_weights(case: Case) -> None:
    stock = case.stock(STEPS)

    chosen = case.disaggregated(STEPS, OtherFirstWeights, more="--fbd-forward-on-cpus")

    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(chosen[-1].losses) == STEPS
