"""Four CPU ranks, one of which calls another collective than the others: a real collector and detector name it, and
nobody else, though the ranks are in their first steps and gloo ends one of them over it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from megatronapp.cli.local_stack import Options, local_stack
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.v1 import findings_pb2
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

WORLD, CULPRIT, FROM_STEP = 4, 2, 4
TRAINING_SECONDS = 60.0
SEEN = "seen"
"""A file: the finding was heard, the ranks may go."""


def rank(flags: str, folder: Path) -> None:
    threading.Thread(target=leave_when_seen, args=(folder / SEEN,), daemon=True).start()
    train(f"{TINY} {flags}", plugins=(ScanPlugin, FaultsPlugin))


def leave_when_seen(file: Path) -> None:
    while not file.exists():
        time.sleep(0.1)
    os._exit(0)


async def listen(bus: MemoryBus, found: list[Finding]) -> None:
    async for message in bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
        found += [Finding.from_proto(findings_pb2.Finding.FromString(message.value))]


def play(flags: str, folder: Path, environment: dict[str, str]) -> None:
    """Until the ranks go, or break."""
    with suppress(RankFailedError):
        run_forked(WORLD, rank, flags, folder, timeout=TRAINING_SECONDS, environment=environment, may_die=range(WORLD))


async def hang_of(folder: Path, fault: str) -> list[Finding]:
    """Every hang that was told of a training with this fault, as it was told first."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(f"faults: [{{{fault}, ranks: [{CULPRIT}], from_step: {FROM_STEP}, to_step: {FROM_STEP}}}]")
    flags = f"--train-iters 1000 --trace --fault-scenario {scenario}"
    found: list[Finding] = []
    async with local_stack(Options(folder, page_port=None)) as running:
        listening = asyncio.create_task(listen(running.bus, found))
        environment = {
            "MEGATRONAPP_JOB": "local/program",
            "MEGATRONAPP_COLLECTOR_ADDRESS": running.collector_address,
            "MEGATRONAPP_TOKEN_FILE": str(running.token_file),
        }
        training = asyncio.create_task(asyncio.to_thread(play, flags, folder, environment))
        while not found and not training.done():
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)  # for whoever else would be named
        (folder / SEEN).touch()
        await training
        listening.cancel()
    first = {finding.id: finding for finding in reversed(found) if finding.kind is Kind.HANG}
    return list(first.values())


@pytest.mark.parametrize("kind", ["skip_collective", "wrong_size"])
async def test_who_calls_something_else_is_named_and_nobody_else(tmp_path: Path, kind: str) -> None:
    hangs = await hang_of(tmp_path, f"kind: {kind}")

    assert [(hang.ranks, hang.cause) for hang in hangs] == [((CULPRIT,), Cause.DEADLOCK)]
    assert f"Rank {CULPRIT} calls all_reduce of" in hangs[0].summary
    assert "where others call all_reduce of 63680 float32" in hangs[0].summary
