"""Four stages under MegaDPP, whose orders differ and whose messages are posted well ahead: a stage that stops is named,
and not one whose count of messages differs from its neighbour's."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.findings import Cause
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.megatrace.support import CULPRIT, NotesFault, hangs_of, leave_when_seen, scenario
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

STAGES = (
    "--num-layers 8 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --micro-batch-size 1 "
    "--global-batch-size 24 --use-dpp --dpp-policy interleaved"
)


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
