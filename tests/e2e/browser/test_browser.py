"""The page in a real browser: over the real platform and simulated ranks, and over the demo as people start it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.cli.local_stack import LocalStack
from megatronapp.core.auth import StaticTokens
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings
from tests.e2e.browser.served import served
from tests.e2e.browser.stage import SLOW_RANK, demo_job, stage
from tests.e2e.browser.trained import RUN, trained
from tests.e2e.browser.trained import SLOW_RANK as TRAINED_SLOW_RANK

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
PACKAGES = HERE.parents[2] / "services" / "ui" / "node_modules" / "playwright-core"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; `make setup-system` installs it"),
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="no playwright-core; run `npm ci` in services/ui"),
]


async def walk(url: str, slow_rank: int, patience_seconds: int, *, short: bool = False) -> tuple[int | None, str]:
    """Exit code and report of the journey; a short one leaves out what does not depend on the job."""
    return await node(
        "journey.test.mjs",
        PAGE_URL=url,
        SLOW_RANK=str(slow_rank),
        PATIENCE_MS=str(1000 * patience_seconds),
        SHORT_WALK="1" if short else "",
    )


async def node(script: str, **environment: str) -> tuple[int | None, str]:
    """Exit code and report of a walk."""
    process = await asyncio.create_subprocess_exec(
        "node", "--test", "--test-reporter=spec", str(HERE / script),
        env=os.environ | {"CHROMIUM": str(CHROMIUM)} | environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@asynccontextmanager
async def demo(folder: Path, slow_rank: int) -> AsyncIterator[str]:
    """`megatronapp demo`; yields the address that it prints."""
    command = ["-m", "megatronapp.cli.main", "demo", "--port", "0", "--slow-rank", str(slow_rank)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--folder", str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while not (line := (await process.stdout.readline()).decode()).startswith("page"):
                assert line, "the demo ended before it told its page"
        reading = asyncio.create_task(process.stdout.read())
        yield line.split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()
    await reading


@asynccontextmanager
async def viewers_gateway(running: LocalStack, token: str) -> AsyncIterator[str]:
    """A second gateway on the platform's bus, for people who may only look; yields its page's address."""
    settings = GatewaySettings(
        port=0,
        grpc_port=0,
        collector_addresses=(running.collector_address,),
        collector_token=running.operator_token,
    )
    tokens = StaticTokens(viewer=SecretStr(token))
    gateway = Gateway(settings, running.bus, CollectorRegistry(), tokens)
    await gateway.start()
    try:
        yield f"http://127.0.0.1:{gateway.port}/"
    finally:
        await gateway.stop()


async def test_a_person_finds_the_slow_rank_and_its_trace() -> None:
    async with stage(live=True) as running:
        code, report = await walk(running.link, SLOW_RANK, patience_seconds=60)
    assert code == 0, report


async def test_a_person_finds_the_slow_rank_of_the_demo(tmp_path: Path) -> None:
    async with demo(tmp_path, slow_rank=1) as url:
        code, report = await walk(url, 1, patience_seconds=240, short=True)
    assert code == 0, report


async def test_a_page_that_loses_its_platform_says_so_and_finds_it_again(tmp_path: Path) -> None:
    code, report = await node("lost.test.mjs", PYTHON=sys.executable, FOLDER=str(tmp_path))
    assert code == 0, report


async def test_a_person_calls_a_finding_not_slow_and_no_other_changes() -> None:
    async with stage(live=True, job=demo_job(1, 3)) as running, viewers_gateway(running, "to-look") as viewers:
        code, report = await node(
            "refute.test.mjs",
            PAGE_URL=running.link,
            SLOW_RANKS="1,3",
            VIEWER_URL=viewers,
            VIEWER_TOKEN="to-look",
        )
        counted = running.registry.get_sample_value("megatronapp_findings_refuted_total", {"kind": "slow_gpu"})
    assert code == 0, report
    assert counted == 1


async def test_a_person_compares_runs_and_opens_a_link_of_last_month() -> None:
    """Over a made-up gateway; the page is the built one."""
    code, report = await node("runs.test.mjs")
    assert code == 0, report


async def test_every_page_is_accessible_and_an_alert_leads_to_the_slow_rank_among_512() -> None:
    """Over a made-up gateway; the page is the built one."""
    code, report = await node("pages.test.mjs")
    assert code == 0, report


async def test_a_person_looks_into_a_training_steps_it_and_disturbs_it(tmp_path: Path) -> None:
    async with trained(tmp_path) as running:
        code, report = await node("scope.test.mjs", PAGE_URL=running.link, RUN=RUN, SLOW_RANK=str(TRAINED_SLOW_RANK))
    assert code == 0, report


async def test_a_person_generates_text_and_sees_where_it_comes_from() -> None:
    """Over a made-up gateway; the page is the built one."""
    code, report = await node("generate.test.mjs")
    assert code == 0, report


async def test_a_person_generates_text_with_a_served_checkpoint(tmp_path: Path) -> None:
    async with served(tmp_path) as url:
        code, report = await node("served.test.mjs", PAGE_URL=url)
    assert code == 0, report
