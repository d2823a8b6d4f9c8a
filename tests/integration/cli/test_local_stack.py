"""The platform in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from megatronapp.cli.local_stack import Options, local_stack
from megatronapp.detector.app import Detector


async def test_a_service_that_fails_ends_the_platform_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(detector: Detector) -> None:
        raise RuntimeError("the detector broke")

    monkeypatch.setattr(Detector, "_read", fail)

    with pytest.raises(RuntimeError, match="the detector broke"):
        async with asyncio.timeout(30), local_stack(Options(tmp_path, page_port=None)):
            await asyncio.Event().wait()


async def test_what_the_body_raises_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with local_stack(Options(tmp_path, page_port=None)):
            raise KeyError("mine")


async def test_who_signs_in_to_one_platform_of_a_host_stays_signed_in_to_the_other(tmp_path: Path) -> None:
    browser = httpx.AsyncClient(follow_redirects=False)  # keeps cookies by host, whatever the port
    options = [Options(tmp_path / name, page_port=0) for name in ("up", "demo")]
    async with browser, local_stack(options[0]) as up, local_stack(options[1]) as demo:
        for running in (up, demo):
            await browser.get(running.link)

        asked = [(await browser.get(f"{running.page}api/v1/session")).json() for running in (up, demo)]

    assert [answer["authenticated"] for answer in asked] == [True, True]
