"""A script that is attached to and hangs, under a platform of its own."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.bus import Topic
from megatronapp.core.findings import Finding, Kind
from megatronapp.v1 import findings_pb2
from tests.support.attached import end


async def first_hang(
    folder: Path, begin: Callable[[list[str]], subprocess.Popen[str]], patience_seconds: float
) -> tuple[Finding | None, str]:
    """The first hang that is told, None where the script ends or patience does; and what the script wrote.
    `begin(flags of megatronapp attach)` starts it, and it is ended here."""
    async with local_stack(Options(folder, page_port=None)) as running:
        told = asyncio.create_task(_told(running))
        platform = ["--collector-address", running.collector_address, "--token-file", str(running.token_file)]
        with begin(platform) as training:
            ending = asyncio.create_task(asyncio.to_thread(end, training, patience_seconds))
            await asyncio.wait([told, ending], return_when=asyncio.FIRST_COMPLETED)
            training.terminate()
            output, errors = await ending
        found = told.result() if told.done() else None
        told.cancel()
    return found, output + errors


async def _told(running: LocalStack) -> Finding:
    async for message in running.bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
        finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
        if finding.kind is Kind.HANG:
            return finding
    raise AssertionError("the bus has ended")
