"""Ranks on GPUs, one of which comes to a stand: a real agent, collector and detector name it and its side within 10 s,
and nobody else, from what NCCL tells.

MEGATRONAPP_HANG_ROUNDS plays each so many times (default 1), MEGATRONAPP_HANG_STOPS says how often the ranks of one run
are stopped (default 3). Each prints a line of JSON (pytest -s).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatronapp.core.findings import Cause, Finding
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.gpu.devices import DEVICES, REHEARSED, needs
from tests.integration.megatrace.support import (
    FROM_STEP,
    OTHERS_SECONDS,
    Hangs,
    NotesFault,
    StopsItself,
    culprit,
    hangs_of,
    leave_when_seen,
    scenario,
    seconds_to_told,
    watched,
)
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")

ROUNDS = int(os.environ.get("MEGATRONAPP_HANG_ROUNDS", "1"))
STOPS = int(os.environ.get("MEGATRONAPP_HANG_STOPS", "3"))
WITHIN_SECONDS = 10.0
RUN_SECONDS = 150.0 if REHEARSED else 55.0
"""Of one case: its start, its clean steps, and its hang."""
SETTLED_SECONDS = 3.0
RAS_TOLD = 600
"""Characters of what NCCL's RAS says: it comes some seconds after the finding, where it comes."""
WORLD = 4 if DEVICES >= 4 else 2
DATA, PIPELINE, TENSOR = "", "--pipeline-model-parallel-size 2", "--tensor-model-parallel-size 2"
OTHER = f"{PIPELINE} {TENSOR}" if WORLD == 4 else PIPELINE
DEEP = "--num-layers 48"
"""A pass has more kernels than the driver takes ahead of the device: the host does not come to what others are in."""
STOPPED, DEVICE, KILLED = "SIGSTOP", "kind: hang, side: device", "kind: kill"
PROGRAM = ("kind: skip_collective", "kind: wrong_size")
SIDES = {STOPPED: Cause.HOST_CPU, DEVICE: Cause.COMPUTE, KILLED: Cause.HOST_CPU} | dict.fromkeys(
    PROGRAM, Cause.DEADLOCK
)
CASES = [
    *((fault, DATA) for fault in PROGRAM if WORLD > 2),  # of two members nobody can tell who calls something else
    *((DEVICE, layout) for layout in dict.fromkeys((DATA, OTHER, PIPELINE, DEEP))),
    *((KILLED, layout) for layout in (DATA, OTHER)),
    (STOPPED, OTHER),
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(RUN_SECONDS + STOPS * 30),
    needs(WORLD),
    *([pytest.mark.flaky(reruns=3, only_rerun="EndedByGlooError")] if REHEARSED else ()),
]


def rank(flags: str, folder: Path) -> None:
    train_beside(flags, folder, NotesFault, FaultsPlugin)


def stopping_rank(flags: str, folder: Path) -> None:
    train_beside(flags, folder, NotesFault, StopsItself)


def train_beside(flags: str, folder: Path, *plugins: type[Plugin]) -> None:
    leave_when_seen(folder)
    train(f"{TINY} --nccl-trace {flags}", plugins=(ScanPlugin, MegatracePlugin, *plugins))


def tell(fault: str, layout: str, seconds: float | None, told: list[Finding], broken: int) -> None:
    """A line of what was seen, before anything is asserted of it."""
    row: dict[str, Any] = {"fault": fault, "layout": layout or "data-parallel", "ranks": WORLD, "broken": broken}
    row |= {"seconds": seconds and round(seconds, 2), "named": [list(each.ranks) for each in told]}
    row |= {"causes": [each.cause for each in told], "summaries": [each.summary for each in told]}
    row["witnesses"] = sorted({one.signal for each in told for one in each.evidence} - {"frontier"})
    row["ras"] = next((one.text[:RAS_TOLD] for each in told for one in each.evidence if one.signal == "nccl_ras"), None)
    print("\n" + json.dumps(row), flush=True)


@pytest.mark.parametrize("again", range(ROUNDS))
@pytest.mark.parametrize(("fault", "layout"), CASES)
async def test_who_stands_still_is_named_with_its_side(tmp_path: Path, fault: str, layout: str, again: int) -> None:
    broken = culprit(WORLD)
    flags = layout if fault == STOPPED else f"{layout} {scenario(tmp_path, fault, world=WORLD)}"
    program = stopping_rank if fault == STOPPED else rank

    hangs = await hangs_of(tmp_path, flags, program, world=WORLD, seconds=RUN_SECONDS)

    seconds = seconds_to_told(tmp_path, hangs)
    tell(fault, layout, seconds, list(hangs.standing.values()), broken)
    assert [each.ranks for each in hangs.expected()] == [(broken,)]
    (found,) = hangs.standing.values()
    assert (found.ranks, found.cause) == ((broken,), SIDES[fault])
    assert seconds is not None
    assert seconds <= WITHIN_SECONDS


@pytest.mark.parametrize("again", range(ROUNDS))
async def test_each_of_several_stops_of_one_run_is_told_of_and_is_over_again(tmp_path: Path, again: int) -> None:
    async with watched(tmp_path, DATA, rank, WORLD, RUN_SECONDS + STOPS * 25) as (hangs, training):
        begun = tmp_path / "FAULT_BEGUN"  # its first steps are done
        assert await until(begun.exists, RUN_SECONDS), (
            f"no {FROM_STEP} steps in time; training ended: {training.done()}"
        )
        outcomes = [await stop(tmp_path, hangs, (culprit(WORLD) + turn) % WORLD) for turn in range(STOPS)]

    for broken, told, seconds in outcomes:
        assert [each.ranks for each in told] == [(broken,)]
        assert [each.cause for each in told] == [Cause.HOST_CPU]
        assert seconds is not None
        assert seconds <= WITHIN_SECONDS


async def stop(folder: Path, hangs: Hangs, broken: int) -> tuple[int, list[Finding], float | None]:
    """Stop a rank, let it go on, and wait until nothing stands any more: who was named meanwhile, and how soon."""
    await asyncio.sleep(SETTLED_SECONDS)
    before, began = len(hangs.opened), time.monotonic()
    process = int((folder / f"pid.{broken}").read_text())
    os.kill(process, signal.SIGSTOP)
    try:
        heard = await until(lambda: len(hangs.opened) > before, 2 * WITHIN_SECONDS)
        seconds = time.monotonic() - began if heard else None
        await asyncio.sleep(OTHERS_SECONDS)
    finally:
        os.kill(process, signal.SIGCONT)
    over = await until(lambda: not hangs.open, 2 * WITHIN_SECONDS)
    told = [hangs.standing[each.id] for each in hangs.opened[before:]]
    tell("SIGSTOP, and on again" if over else "SIGSTOP, not over again", DATA, seconds, told, broken)
    assert over
    return broken, told, seconds


async def until(reached: Callable[[], bool], seconds: float) -> bool:
    """Whether it was in time."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
