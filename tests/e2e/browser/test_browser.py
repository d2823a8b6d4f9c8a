"""The page in a real browser, over the real platform and simulated ranks."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.browser.stage import SLOW_RANK, stage

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
PACKAGES = HERE.parents[2] / "services" / "ui" / "node_modules" / "playwright-core"


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; `make setup-system` installs it")
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="no playwright-core; run `npm ci` in services/ui")
async def test_a_person_finds_the_slow_rank_and_its_trace() -> None:
    async with stage(live=True) as url:
        environment = os.environ | {"PAGE_URL": url, "SLOW_RANK": str(SLOW_RANK), "CHROMIUM": str(CHROMIUM)}
        walk = await asyncio.create_subprocess_exec(
            "node", "--test", "--test-reporter=spec", str(HERE / "journey.test.mjs"),
            env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await walk.communicate()
    assert walk.returncode == 0, output.decode()
