"""One attack in several processes: the same inputs, each executed by one of them, and what came of all in one table."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench._attack_share import Share
from bench._attack_tally import Record, Tally, summed, total

PROGRESS_SECONDS = 15.0
END_SECONDS = 30.0
"""For a process that is asked to end: inputs that are under way are let come to their end."""
OUTPUT_TAIL = 3_000
"""Characters of what a process printed that ended without a result."""

Report = Callable[[Share, Sequence[Tally]], None]


def in_processes(given: argparse.Namespace, report: Report) -> list[Tally]:
    """All shares at once. Tells of each as it ends; SIGINT and SIGTERM end them all."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_play(given, Path(folder), report))


async def _play(given: argparse.Namespace, folder: Path, report: Report) -> list[Tally]:
    began = time.monotonic()
    shares = [Share(number, given.processes) for number in range(1, given.processes + 1)]
    parts = [await _Part.start(given, share, folder) for share in shares]
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _end, parts)
    running = {asyncio.create_task(part.ended()) for part in parts}
    try:
        while running:
            ended, running = await asyncio.wait(running, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for part in (task.result() for task in ended):
                print(part.output_tail(), end="")
                report(part.share, part.tallies())
            print(f"{len(running)} processes run, {_so_far(parts)}, {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for part in parts:
            part.kill()
    return summed(tally for part in parts for tally in part.tallies())


def _so_far(parts: Sequence[_Part]) -> str:
    whole = total(tally for part in parts for tally in part.tallies())
    return f"{whole.executions:,} of {whole.planned:,} inputs, {whole.harms.total()} harms"


def _end(parts: Sequence[_Part]) -> None:
    for part in parts:
        part.ask_to_end()
        asyncio.get_running_loop().call_later(END_SECONDS, part.kill)


@dataclass
class _Part:
    """A process with its share of the inputs."""

    share: Share
    _planned: dict[str, range]
    _process: asyncio.subprocess.Process
    _log: Path
    _record: Record
    _asked: bool = False

    @classmethod
    async def start(cls, given: argparse.Namespace, share: Share, folder: Path) -> _Part:
        """In a session of its own: a terminal's Ctrl-C is for us."""
        log, record = folder / f"{share.number}.log", Record(folder / f"{share.number}.json")
        command = [
            sys.executable, "-m", "bench.attack", "--executions", str(given.executions), "--seed", str(given.seed),
            "--share", str(share), "--failures", str(given.failures), "--record", str(record.path),
            "--targets", *given.targets,
        ]  # fmt: skip
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file, start_new_session=True)
        return cls(share, share.planned(given.targets, given.executions, given.seed), process, log, record)

    async def ended(self) -> _Part:
        await self._process.wait()
        return self

    def ask_to_end(self) -> None:
        if self._process.returncode is None:
            self._asked = True
            self._process.terminate()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def tallies(self) -> list[Tally]:
        """So far, of all its targets. A process that ended unasked before it was done is a harm of its own."""
        known = {tally.name: tally for tally in self._record.read()[0]}
        tallies = [known.get(name) or Tally(name, len(seeds)) for name, seeds in self._planned.items()]
        if self._failed():
            harm = f"{self.share} ended with {self._process.returncode}"
            tallies.append(Tally("process", harms=Counter({harm: 1})))
        return tallies

    def output_tail(self) -> str:
        """Of a process that failed."""
        return self._log.read_text(errors="replace")[-OUTPUT_TAIL:] if self._failed() else ""

    def _failed(self) -> bool:
        return self._process.returncode is not None and not self._asked and not self._record.read()[1]
