"""Ranks that train, on four CPUs unless told otherwise, watched by a real agent, collector and detector: what is told
of them as a hang."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, Self

from megatronapp.cli.local_stack import Options, local_stack
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Finding, Kind, State
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.v1 import findings_pb2
from tests.integration.megatrace import times
from tests.support.forked import RankFailedError, RanksTimeoutError, run_forked
from tests.support.training import TINY, train

WORLD, CULPRIT = 4, 2
"""How many ranks, and which is broken; of two it is the last."""
TRAINING_SECONDS = 90.0
OTHERS_SECONDS = 4.0
"""For which is waited for whoever else would be named, and for stacks."""
FROM_STEP = 40
"""By then the job's usual pauses are known."""
BEGUN = "FAULT_BEGUN"
"""A file with the Unix time of the fault, and the variable that names it."""
SEEN = "seen"
"""A file: the finding was heard, the ranks may go."""

RankProgram = Callable[[str, Path], None]


class Services(Protocol):
    @property
    def bus(self) -> MemoryBus: ...
    @property
    def collector_address(self) -> str: ...
    @property
    def token_file(self) -> Path: ...


def culprit(world: int) -> int:
    return min(CULPRIT, world - 1)


class EndedByGlooError(AssertionError):
    """gloo ends a process that gets more bytes than it expects, where NCCL waits for ever: when the ranks meet so, the
    attempt is over before anybody has waited. Who expects a finding tries again."""


@dataclass
class Hangs:
    """Every hang that was told of, as it was told first, and last while it stood. `broke`: the ranks ended before the
    time given to them."""

    first: dict[str, Finding] = field(default_factory=dict)
    opened: list[Finding] = field(default_factory=list)
    """In their order, again where it was over meanwhile."""
    open: set[str] = field(default_factory=set)
    standing: dict[str, Finding] = field(default_factory=dict)
    broke: bool = False
    told_at: float | None = None
    """Unix time of the first."""

    def expected(self) -> list[Finding]:
        """As they were told first. Raises EndedByGlooError."""
        if self.broke and not self.first:
            raise EndedByGlooError
        return list(self.first.values())

    def take(self, finding: Finding) -> None:
        if finding.kind is Kind.HANG:
            self.told_at = self.told_at or time.time()
            self.first.setdefault(finding.id, finding)
            if finding.state is not State.OPEN:
                self.open.discard(finding.id)
                return
            if finding.id not in self.open:
                self.open.add(finding.id)
                self.opened.append(finding)
            self.standing[finding.id] = finding


def rank(flags: str, folder: Path) -> None:
    """A rank, which goes when the finding was heard."""
    leave_when_seen(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, NotesFault, FaultsPlugin))


class NotesFault(Plugin):
    """When the step begins in which the culprit is broken."""

    name: ClassVar[str] = "notes_fault"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == culprit(context.placement.sizes.world) else None

    def step_begin(self, step: int) -> None:
        if step == FROM_STEP:
            Path(os.environ[BEGUN]).write_text(str(time.time()))


class StopsItself(Plugin):
    """The culprit's process stops in a step, as by anybody's SIGSTOP."""

    name: ClassVar[str] = "stops_itself"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == culprit(context.placement.sizes.world) else None

    def step_begin(self, step: int) -> None:
        if step == FROM_STEP:
            os.kill(os.getpid(), signal.SIGSTOP)


def stopping_rank(flags: str, folder: Path) -> None:
    leave_when_seen(folder)
    train(f"{TINY} {flags}", plugins=(ScanPlugin, NotesFault, StopsItself))


def leave_when_seen(folder: Path) -> None:
    def watch() -> None:
        while not (folder / SEEN).exists():
            time.sleep(0.1)
        os._exit(0)

    (folder / f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    threading.Thread(target=watch, daemon=True).start()


def wake(folder: Path) -> None:
    """Who was stopped goes on, and sees that it may go."""
    for file in folder.glob("pid.*"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGCONT)


async def listen(bus: MemoryBus, hangs: Hangs) -> None:
    async for message in bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
        hangs.take(Finding.from_proto(findings_pb2.Finding.FromString(message.value)))


def play(
    program: RankProgram, flags: str, folder: Path, environment: dict[str, str], world: int, seconds: float
) -> bool:
    """Until the ranks go, or break: whether they did before their time was over."""
    try:
        run_forked(world, program, flags, folder, timeout=seconds, environment=environment, may_die=range(world))
    except RanksTimeoutError:
        return False
    except RankFailedError:
        return True
    return True


def scenario(folder: Path, fault: str, *, from_step: int = FROM_STEP, world: int = WORLD) -> str:
    """The flag of a scenario in which the culprit has this fault in one step."""
    file = folder / "scenario.yaml"
    file.write_text(f"faults: [{{{fault}, ranks: [{culprit(world)}], from_step: {from_step}, to_step: {from_step}}}]")
    return f"--fault-scenario {file}"


async def hangs_of(
    folder: Path,
    flags: str,
    program: RankProgram = rank,
    fault: str = "",
    world: int = WORLD,
    seconds: float = TRAINING_SECONDS,
) -> Hangs:
    """fault: as the table of times calls it; empty: it is not in it."""
    async with watched(folder, flags, program, world, seconds) as (hangs, training):
        while not hangs.first and not training.done():
            await asyncio.sleep(0.1)
        await asyncio.sleep(OTHERS_SECONDS)
    hangs.broke = await training
    if fault and (hangs.first or not hangs.broke):  # gloo ended the attempt before anybody had waited
        times.note(fault, seconds_to_told(folder, hangs))
    return hangs


@asynccontextmanager
async def watched(
    folder: Path,
    flags: str,
    program: RankProgram,
    world: int = WORLD,
    seconds: float = TRAINING_SECONDS,
    platform: AbstractAsyncContextManager[Services] | None = None,
) -> AsyncIterator[tuple[Hangs, asyncio.Task[bool]]]:
    """Ranks that train until the block ends, beside a platform: what is told of them as a hang, and their training."""
    hangs = Hangs()
    async with platform or local_stack(Options(folder, page_port=None)) as running:
        listening = asyncio.create_task(listen(running.bus, hangs))
        environment = {
            "MEGATRONAPP_JOB": "local/program",
            "MEGATRONAPP_COLLECTOR_ADDRESS": running.collector_address,
            "MEGATRONAPP_TOKEN_FILE": str(running.token_file),
            BEGUN: str(folder / BEGUN),
        }
        arguments = f"--train-iters 100000 --trace {flags}"
        training = asyncio.create_task(asyncio.to_thread(play, program, arguments, folder, environment, world, seconds))
        try:
            yield hangs, training
        finally:
            listening.cancel()  # how the ranks leave is not what is told of
            (folder / SEEN).touch()
            wake(folder)
            await training


def seconds_to_told(folder: Path, hangs: Hangs) -> float | None:
    """From the fault's begin to the first finding."""
    begun = folder / BEGUN
    return hangs.told_at - float(begun.read_text()) if hangs.told_at and begun.exists() else None
