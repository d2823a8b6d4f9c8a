"""Four stages under MegaDPP, whose orders differ and whose messages are posted well ahead: a stage that stops is named,
and not one whose count of messages differs from its neighbour's."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch

from megatronapp.core.findings import Cause
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.megatrace.support import (
    CULPRIT,
    NotesFault,
    RankProgram,
    culprit,
    hangs_of,
    leave_when_seen,
    scenario,
)
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STAGES = (
    "--num-layers 8 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --micro-batch-size 1 "
    "--global-batch-size 24 --use-dpp --dpp-policy interleaved-zb"
)


MANY_LANES = (
    "--num-layers 24 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 6 --micro-batch-size 1 "
    "--global-batch-size 8 --use-dpp --dpp-policy interleaved-zb"
)
"""More receives are posted ahead in a pair's lanes than a heartbeat names of their messages."""
FROM_STEP, STOPS_IN_PASS = 12, 40
"""Late enough for what is usual in the job to be known: before that a stall is waited for as at a start."""


def rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, DppPlugin, NotesFault, FaultsPlugin))


@pytest.mark.parametrize("side", ["host", "device"])
async def test_the_stage_that_stops_is_named_and_nobody_else(tmp_path: Path, side: str) -> None:
    stops = scenario(tmp_path, f"kind: hang, side: {side}", from_step=10)

    hangs = await hangs_of(tmp_path, f"{STAGES} {stops}", rank)

    print([each.summary for each in hangs.opened])
    assert [each.ranks for each in hangs.opened] == [(CULPRIT,)]
    assert hangs.opened[0].cause is {"host": Cause.HOST_CPU, "device": Cause.COMPUTE}[side]


class StopsBetweenMessages(Plugin):
    """The culprit stops in a forward pass in the middle of a step, when messages of all its lanes are posted: it
    computes without end, or stands still."""

    name: ClassVar[str] = "stops_between_messages"
    computes: ClassVar[bool] = True

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == culprit(context.placement.sizes.world) else None

    def __init__(self) -> None:
        self._passes = 0

    def step_begin(self, step: int) -> None:
        self._passes = 0 if step == FROM_STEP else -10_000

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._passes += 1
            while self._passes == STOPS_IN_PASS:
                torch.mm(torch.eye(64), torch.eye(64)) if self.computes else time.sleep(1)
            return function(*args, **kwargs)

        return run


class StandsBetweenMessages(StopsBetweenMessages):
    computes = False


def computing_rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, DppPlugin, StopsBetweenMessages))


def standing_rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, DppPlugin, StandsBetweenMessages))


@pytest.mark.parametrize(("program", "cause"), [(computing_rank, Cause.COMPUTE), (standing_rank, Cause.HOST_CPU)])
async def test_a_stage_that_stops_between_many_open_messages_is_named_and_nobody_else(
    tmp_path: Path, program: RankProgram, cause: Cause
) -> None:
    hangs = await hangs_of(tmp_path, MANY_LANES, program, seconds=200)

    print([each.summary for each in hangs.opened])
    assert [(each.ranks, each.cause) for each in hangs.opened] == [((CULPRIT,), cause)]
