"""How a run that is split into two worlds ends."""

from __future__ import annotations

import argparse
import time
from typing import Self

import pytest

from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.disaggregated import FBD
from tests.support.forked import run_forked
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 2
FLAGS = f"{TINY} --pipeline-model-parallel-size 2 {FBD} --forward-pipeline-model-parallel-size 1 --train-iters {STEPS}"


class Late(Plugin):
    """Of the backward stages the last one comes late to the end of the last step, and looks into the store then."""

    name = "late"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        late = context.placement.role == Role.BACKWARD and context.world.rank > 0
        return cls(2.0 if late else 0.0)

    def step_end(self, step: int, progress: Progress | None) -> None:
        if step == STEPS:
            time.sleep(self._seconds)


def trained() -> int:
    return len(train(FLAGS, plugins=(FbdPlugin, Late)).losses)


def test_a_forward_rank_that_holds_the_store_stays_until_all_backward_ranks_have_come_through() -> None:
    assert run_forked(3, trained, timeout=110.0) == [0, 0, STEPS]  # the last stage tells losses
