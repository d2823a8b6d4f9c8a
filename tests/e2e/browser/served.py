"""A platform on which a checkpoint is served, as people start it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.training import TINY

RANKS = 2
STEPS = 40
START_SECONDS = 240


async def _run(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command,
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """`megatronapp serve` of a model that a few steps made; yields the page's address with a one-time token."""
    checkpoint = folder / "checkpoint"
    flags = f"{TINY} --train-iters {STEPS} --save {checkpoint} --save-interval {STEPS}"
    training = await _run("megatronapp.trainer", *flags.split())
    await training.communicate()
    assert training.returncode == 0
    options = ("--checkpoint", checkpoint, "--tensor-model-parallel-size", RANKS, "--port", 0, "--folder", folder)
    process = await _run("megatronapp.cli.main", "serve", *map(str, options))
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while not (line := (await process.stdout.readline()).decode()).startswith("page"):
                assert line, "it ended before it told its page"
        reading = asyncio.create_task(process.stdout.read())
        yield line.split()[1]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        await process.wait()
    await reading
