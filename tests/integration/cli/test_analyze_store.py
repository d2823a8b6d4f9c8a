"""`megatronapp analyze` of what a platform has left behind names whom the platform named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from megatronapp.cli.local_stack import Options, local_stack
from megatronapp.core.bus import Topic
from megatronapp.core.errors import UsageError
from megatronapp.core.findings import Finding
from megatronapp.detector.analyze import analyze
from megatronapp.v1 import findings_pb2
from tests.e2e.browser.stage import HISTORY, SLOW_FROM, SLOW_RANK, Ranks, demo_job


@asynccontextmanager
async def recorded(folder: Path, run: str = "run-demo") -> AsyncIterator[list[Finding]]:
    """A platform that has taken in a simulated job; gives what it found."""
    found: list[Finding] = []
    async with local_stack(Options(folder, page_port=None)) as running:
        job = demo_job()
        job.run = run
        ranks = Ranks(job)
        streams = await ranks.connect(running.collector_address, running.token_file.read_text())
        for step in range(1, HISTORY + 1):
            ranks.step(step)
            await asyncio.sleep(0.002)
        async with asyncio.timeout(30):
            async for message in running.bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
                found.append(Finding.from_proto(findings_pb2.Finding.FromString(message.value)))
                if any(finding.ranks == (SLOW_RANK,) for finding in found):
                    break
            while not ranks.all_read():
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        yield found
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_the_store_names_the_rank_that_the_platform_named(tmp_path: Path) -> None:
    async with recorded(tmp_path) as live:
        pass

    (run_folder,) = tmp_path.glob("collector/store/*/")
    for folder in (tmp_path, tmp_path / "collector", run_folder, run_folder / "attempt-1"):
        report = analyze(folder)
        assert (report.job.name, report.job.ranks, report.job.steps) == ("local/demo", 4, HISTORY)
        (paged,) = (finding for finding in report.findings if finding.page)
        assert paged.since_step == SLOW_FROM
        told = {(f.kind, f.cause, f.ranks, f.since_step) for f in live}
        assert (paged.kind, paged.cause, paged.ranks, paged.since_step) in told


async def test_of_several_runs_one_has_to_be_named_and_a_write_that_was_cut_does_not_count(tmp_path: Path) -> None:
    for run in ("run-a", "run-b"):
        async with recorded(tmp_path, run):
            pass

    with pytest.raises(UsageError, match="holds 2 runs; name the folder of one") as refused:
        analyze(tmp_path)
    named = str(refused.value).splitlines()[1].split()[0]
    assert analyze(Path(named)).job.steps == HISTORY

    manifest = tmp_path / "collector/store/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"write": 0}))
    assert analyze(Path(named)).job.steps == 0
