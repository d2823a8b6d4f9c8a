"""A collective that all ranks are in and that does not end, while a network port of one of them has bytes outstanding:
that rank is named, and its port."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import pytest

from megatronapp.trainer.plugins.megatrace import MegatracePlugin, plugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.megatrace.sending import SENDS, SendsByRdma, write_telemetry
from tests.integration.megatrace.support import CULPRIT, FROM_STEP, hangs_of, leave_when_seen
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
from tests.integration.megatrace import reported_nccl

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]


PAUSE_SECONDS = 0.25
"""Before each step: the job's usual pauses are known once the platform has heard of steps as they came, and the agents
begin beside the ranks."""


class Stands(SendsByRdma):
    """Of what the culprit sends some does not end, nor does the all-reduce of all ranks behind it."""

    name: ClassVar[str] = "stands"

    def step_begin(self, step: int) -> None:
        time.sleep(PAUSE_SECONDS)
        last = step == FROM_STEP
        self.rdma.send(SENDS, until=SENDS - 20 if last and self.broken else None, at_ns=time.time_ns())
        if last:
            reported_nccl.stands.set()


def rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    write_telemetry(folder)
    reported_nccl.believe_in_nccl()
    train(f"{TINY} {flags}", plugins=(ScanPlugin, MegatracePlugin, Stands))


async def test_the_rank_is_named_whose_sends_stand(tmp_path: Path) -> None:
    os.environ.pop(plugin.VARIABLE, None)

    hangs = await hangs_of(tmp_path, "--nccl-trace", rank)

    print([each.summary for each in hangs.standing.values()])
    assert [each.ranks for each in hangs.standing.values()] == [(CULPRIT,)]
    (hang,) = hangs.standing.values()
    assert f"A send of rank {CULPRIT} through host_mlx5_{CULPRIT} port 0 does not end" in hang.summary
