"""Ranks that train, and write as Megatrace's NCCL does what their network ports send: of one whose port becomes slow
the rank and the port are named, live. No recording of such files is public; these follow Megatrace's code
(tests/support/work_requests.py)."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.cli.local_stack import Options, local_stack
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Finding, Kind
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.v1 import findings_pb2
from tests.integration.megatrace.sending import SendsByRdma, write_telemetry
from tests.integration.megatrace.support import CULPRIT, FROM_STEP, leave_when_seen, watched
from tests.support.training import TINY, train

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]

PATIENCE_SECONDS = 90.0
SLOWER = 4.0


class BecomesSlow(SendsByRdma):
    name: ClassVar[str] = "becomes_slow"

    def step_begin(self, step: int) -> None:
        if self.broken and step == FROM_STEP:
            self.rdma.port = self.rdma.port.slower(SLOWER)
        super().step_begin(step)


def rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    write_telemetry(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, BecomesSlow))


async def slow_link(bus: MemoryBus) -> Finding:
    async for message in bus.subscribe(Topic.FINDINGS, group="links", consumer="links"):
        finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
        if finding.kind is Kind.SLOW_LINK:
            return finding
    raise AssertionError("the subscription ended")


async def shown(registry: CollectorRegistry, series: str) -> None:
    while series not in generate_latest(registry).decode():
        await asyncio.sleep(0.2)


async def test_the_rank_whose_port_becomes_slow_is_named_with_its_port(tmp_path: Path) -> None:
    async with (
        local_stack(Options(tmp_path, page_port=None)) as running,
        watched(tmp_path, "", rank, platform=nullcontext(running)),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        finding = await slow_link(running.bus)
        await shown(running.registry, "megatronapp_nccl_send_bytes_per_second{")

    assert finding.ranks == (CULPRIT,)
    assert f"What rank {CULPRIT} sends through host_mlx5_{CULPRIT} port 0 takes" in finding.summary
