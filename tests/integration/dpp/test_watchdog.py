"""A stage that waits in vain ends the run, and says how far each lane has come and what it waits for."""

from __future__ import annotations

import argparse
import re
import time
from typing import Any, ClassVar, Self

import pytest

from megatronapp.core.errors import TrainingError
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.pipeline import dynamic_step
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from tests.support.forked import run_forked
from tests.support.varied_orders import trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

FLAGS = "--pipeline-model-parallel-size 2 --use-dpp --dpp-policy interleaved-zb"
PATIENCE_SECONDS = 0.5


class Hanging(Plugin):
    """The second stage's first forward pass takes until the first one has lost its patience, and longer."""

    name = "hanging"
    seconds: ClassVar[float] = 0.0

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.seconds = 4 * PATIENCE_SECONDS if context.identity.rank == 1 else 0.0
        return cls()

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            time.sleep(self.seconds)
            return function(*args, **kwargs)

        return run


def error_of_an_impatient_run(flags: str) -> str:
    dynamic_step.LEAST_PATIENCE_SECONDS = PATIENCE_SECONDS
    dynamic_step.PATIENCE = 0.0
    with pytest.raises(TrainingError) as raised:
        trained(flags, DppPlugin, Hanging, steps=1)
    return str(raised.value)


def test_a_stage_that_waits_in_vain_tells_its_lanes_and_the_message_that_it_waits_for() -> None:
    waiting, hanging = run_forked(2, error_of_an_impatient_run, FLAGS)

    assert re.search("stage 0 has had nothing to run for [01] s: it has run 2 F of chunk 0", waiting)
    assert "waits for B0" in waiting
    assert "rank 0 is lost" in hanging
