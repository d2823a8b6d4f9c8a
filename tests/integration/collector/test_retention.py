"""A collector keeps its store within its size, and says when that costs younger traces than its age would."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.collector.conftest import Start
from tests.integration.collector.support import RankStream, closing, hello, identity, summary

MIB = 1 << 20
DROPPED = "megatronapp_trace_expired_bytes_total"


async def test_traces_dropped_for_size_are_counted_and_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatronapp.collector.pipeline.EXPIRE_SECONDS", 0.0)
    attempt = tmp_path / "data/store/run-before/attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "spans-00000000-1-9.parquet").write_bytes(bytes(2 * MIB))

    with capture_logs() as logged:
        running = await start(flush_seconds=0.05, retention_bytes=MIB)
        begun = running.value(DROPPED, reason="age")
        rank = RankStream(running.address)
        await rank.send(hello(identity()), summary(1, 1), closing(2))
        await rank.until_acked(2)
        async with asyncio.timeout(20):
            while running.value(DROPPED, reason="size") < 2 * MIB:
                await asyncio.sleep(0.02)
    await rank.close()

    assert begun == 0
    assert not attempt.exists()
    (warned,) = [entry for entry in logged if entry["event"] == "traces_dropped_for_size"]
    assert (warned["bytes"], warned["retention_bytes"]) == (2 * MIB, MIB)
