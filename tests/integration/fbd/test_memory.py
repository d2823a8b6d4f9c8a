"""What a forward rank holds: weights in the training's type, and little else."""

from __future__ import annotations

import argparse
import gc
from typing import Any, Self

import pytest
import torch

from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.disaggregated import FBD
from tests.support.forked import run_forked
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

HIDDEN, SEQUENCE, BATCH = 256, 16, 2
FLAGS = (
    f"{TINY} --hidden-size {HIDDEN} --bf16 --pipeline-model-parallel-size 2 {FBD} "
    "--forward-pipeline-model-parallel-size 1 --train-iters 3"
)


class Weighing(Plugin):
    """Bytes of all tensors that are alive when a step has ended, the most of all steps, and parameters."""

    name = "weighing"
    held, parameters, role = 0, 0, ""

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.role = context.placement.role
        return cls()

    def models(self, chunks: Any) -> None:
        Weighing.parameters = sum(each.numel() for chunk in chunks for each in chunk.parameters())

    def step_end(self, step: int, progress: Progress | None) -> None:
        Weighing.held = max(Weighing.held, alive_bytes())


def alive_bytes() -> int:
    gc.collect()
    storages = (each.untyped_storage() for each in gc.get_objects() if isinstance(each, torch.Tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def weighed() -> tuple[str, int, int]:
    train(FLAGS, plugins=(FbdPlugin, Weighing))
    return Weighing.role, Weighing.held, Weighing.parameters


@pytest.mark.long
def test_a_forward_rank_holds_its_weights_in_the_trainings_type_and_little_else() -> None:
    ranks = run_forked(3, weighed, timeout=300)

    ((_, held, parameters),) = [each for each in ranks if each[0] == Role.FORWARD]
    layer = 34 * SEQUENCE * BATCH * HIDDEN
    on_the_way = 4 * 2 * SEQUENCE * BATCH * HIDDEN
    assert 2 * parameters <= held <= 2.2 * parameters + layer + on_the_way
    trained = [held / parameters for role, held, parameters in ranks if role == Role.BACKWARD]
    assert min(trained) > 14
