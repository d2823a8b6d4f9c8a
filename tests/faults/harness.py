"""One case of the matrix: real ranks, a real collector and detector, and what they concluded.

A stage plays cases one after the other, as they share the processors. A job that stands still is left what nobody
else wants of them, and is watched while the next one plays.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import yaml
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal

from megatronapp.cli.demo.state import DemoState
from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Finding
from megatronapp.core.scenario import FaultKind
from megatronapp.detector import profiles
from megatronapp.v1 import findings_pb2, trace_pb2
from tests.faults.cases import ALL_LAYOUTS, Case
from tests.faults.rank import main
from tests.support.ports import free_port

WORLD = 4
CLEAN_STEPS, BRIEF_CLEAN_STEPS = 80, 60
FAULT_STEPS, FAULT_SECONDS = 50, 2 * profiles.CPU.patience.seconds
"""Of a fault, found or not: whoever pages in the end counts. A quick host makes the steps in less time than a page
waits for."""
HANG_SECONDS, STANDING_SECONDS = 30.0, 2.0
"""A hang is watched for so long; after so long without a step the next case plays beside it."""
START_SECONDS = 120.0

MODEL = [
    "--num-layers=4",
    "--hidden-size=64",
    "--num-attention-heads=4",
    "--seq-length=64",
    "--micro-batch-size=2",
    "--global-batch-size=8",
    "--train-iters=100000",
    "--lr=1e-3",
    "--mock-data",
    "--tokenizer-type=NullTokenizer",
    "--vocab-size=255",
    "--num-workers=0",
    "--attention-dropout=0",
    "--hidden-dropout=0",
    "--log-interval=1000000",
    "--eval-iters=0",
    "--trace",
]


@dataclass(frozen=True)
class Outcome:
    case: Case
    injected: list[int]
    pages: list[Finding] = field(repr=False)
    """Every finding that ever paged, as it was when it did; without those of `early`."""
    early: list[Finding] = field(repr=False)
    """Those that paged before the fault began: they are wrong, whomever they name."""
    steps: int | None
    seconds: float | None
    last_step: int

    @property
    def paged(self) -> list[int]:
        """Ranks that somebody was woken for once the fault was there, whether or not it has been taken back."""
        return sorted({rank for page in self.pages for rank in page.ranks})

    @property
    def paged_early(self) -> list[int]:
        return sorted({rank for page in self.early for rank in page.ranks})


def forkserver() -> ForkServerContext:
    """Processes forked from one that has imported the trainer and its plug-ins once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.preloaded"])
    return context


@dataclass(frozen=True)
class Stage:
    portal: BlockingPortal
    context: ForkServerContext
    briefly: bool
    """A fault that is found is over after FAULT_SECONDS, however few its steps; clean runs have BRIEF_CLEAN_STEPS."""

    def play(self, case: Case) -> Future[Outcome]:
        """Returns when the case is over, or stands still and is watched on."""
        outcome, _ = self.portal.start_task(play, case, self.context, self.briefly)
        return outcome


def clean_steps(*, briefly: bool) -> int:
    return BRIEF_CLEAN_STEPS if briefly else CLEAN_STEPS


async def play(
    case: Case,
    context: ForkServerContext,
    briefly: bool = False,
    *,
    task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
) -> Outcome:
    """Run the case to its end, whatever is found before. It counts as started when it stands still or is over."""
    with tempfile.TemporaryDirectory() as folder:
        state, pages = DemoState(case.scenario), dict[str, tuple[Finding, bool]]()
        options = Options(Path(folder), page_port=None)
        async with local_stack(options) as running, _listening(running.bus, state, pages):
            ranks = _start(case, context, Path(folder), running)
            try:
                stands = await _until_over(case, state, ranks, briefly=briefly)
                if stands:
                    _leave_processors(ranks)
                    task_status.started()
                    await _watch_on(case, state, ranks)
            finally:
                await asyncio.to_thread(_kill, ranks)
        if not stands:
            task_status.started()
        verdict = state.verdict()
        return Outcome(
            case,
            state.injected,
            [page for page, early in pages.values() if not early],
            [page for page, early in pages.values() if early],
            verdict["detection_steps"],
            verdict["detection_seconds"],
            state.step,
        )


@asynccontextmanager
async def _listening(bus: MemoryBus, state: DemoState, pages: dict[str, tuple[Finding, bool]]) -> AsyncIterator[None]:
    async def steps() -> None:
        async for message in bus.subscribe(Topic.STEPS, group="test", consumer="test"):
            state.on_message(trace_pb2.RankMessage.FromString(message.value))

    async def findings() -> None:
        async for message in bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
            finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
            state.find(finding)
            if finding.page:
                pages.setdefault(finding.id, (finding, state.step < state.from_step - 1))

    tasks = [asyncio.create_task(steps()), asyncio.create_task(findings())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def _start(case: Case, context: ForkServerContext, folder: Path, running: LocalStack) -> list[ForkServerProcess]:
    scenario = folder / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(case.scenario.model_dump(mode="json", exclude_none=True)))
    argv = [*MODEL, *ALL_LAYOUTS[case.layout], *(["--fault-scenario", str(scenario)] if not case.clean else [])]
    environment = {
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "MEGATRONAPP_JOB": "local/matrix",
        "MEGATRONAPP_COLLECTOR_ADDRESS": running.collector_address,
        "MEGATRONAPP_TOKEN_FILE": str(running.token_file),
    }
    ranks = []
    for rank in range(WORLD):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(target=main, args=(argv, own, str(folder / f"rank-{rank}.log")), daemon=True)
        process.start()
        ranks.append(process)
    return ranks


async def _until_over(case: Case, state: DemoState, ranks: list[ForkServerProcess], *, briefly: bool = False) -> bool:
    """True: the job stands still, as it shall. Whichever else does is over after as long as a hang is watched."""
    hangs = any(fault.kind is FaultKind.HANG for fault in case.scenario.faults)
    last_step = clean_steps(briefly=briefly) if case.clean else state.from_step + FAULT_STEPS
    step, moved, over_at = 0, time.monotonic(), 0.0
    while moved < over_at or (step < last_step and not (briefly and over_at and _is_found(state))):
        await _moment(case, ranks)
        now = time.monotonic()
        if state.step > step:
            if not case.clean and step < state.from_step <= state.step:
                over_at = now + FAULT_SECONDS
            step, moved = state.step, now
        elif hangs and step >= state.from_step - 1 and now - moved > STANDING_SECONDS:
            return True
        elif now - moved > (HANG_SECONDS if step else START_SECONDS):
            break
    return False


def _is_found(state: DemoState) -> bool:
    return set(state.injected) <= set(state.found)


async def _watch_on(case: Case, state: DemoState, ranks: list[ForkServerProcess]) -> None:
    """What stands still does so to the end."""
    step, until = state.step, time.monotonic() + HANG_SECONDS - STANDING_SECONDS
    while time.monotonic() < until:
        await _moment(case, ranks)
        assert state.step == step, f"{case.name}: it goes on"


async def _moment(case: Case, ranks: list[ForkServerProcess]) -> None:
    await asyncio.sleep(0.1)
    if any(process.exitcode is not None for process in ranks):
        raise AssertionError(f"{case.name}: a rank ended with {[process.exitcode for process in ranks]}")


def _leave_processors(ranks: list[ForkServerProcess]) -> None:
    """A rank that computes for ever does so from now on where nobody else would."""
    for process in ranks:
        if process.pid is not None:
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))


def _kill(ranks: list[ForkServerProcess]) -> None:
    for process in ranks:
        process.kill()
    for process in ranks:
        process.join()
