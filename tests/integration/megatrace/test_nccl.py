"""What NCCL tells, and nobody else: ranks over gloo whose all-reduces a stand-in of NCCL reports to the plug-in, and no
hook of ours sees. The members find each other by NCCL's hash, and the rank that stopped is named in the words of the
group that they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin, plugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.integration.megatrace.support import CULPRIT, WORLD, hangs_of, leave_when_seen, scenario
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
from tests.integration.megatrace.reported_nccl import believe_in_nccl

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]


def rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    believe_in_nccl()
    train(f"{TINY} {flags}", plugins=(ScanPlugin, MegatracePlugin, FaultsPlugin))


@pytest.mark.exhaustive  # beside other launches nobody was named once in three
async def test_a_rank_that_stops_is_named_by_what_nccl_tells_alone(tmp_path: Path) -> None:
    os.environ.pop(plugin.VARIABLE, None)
    stops = scenario(tmp_path, "kind: hang, side: host", from_step=40)

    hangs = await hangs_of(tmp_path, f"--nccl-trace {stops}", rank)

    (hang,) = hangs.first.values()
    assert (hang.ranks, hang.cause) == ((CULPRIT,), Cause.HOST_CPU)
    others = [str(each) for each in range(WORLD) if each != CULPRIT]
    assert f"waiting for it: {', '.join(others)}" in hang.summary
    assert f"Rank {CULPRIT} has not entered all_reduce" in hang.summary
    print(hang.summary)
