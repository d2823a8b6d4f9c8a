"""Hostile inputs without end: `python -m bench.attack --executions 1000000`.

The same inputs as tests/attack, made of a seed: messages, requests, objects, files, tokens. It prints what came of
them, and ends with 1 when anything crashed, hung, grew or harmed the innocent job beside it. What failed is saved;
`--replay FILE` executes it again.

`--processes 32` shares the same inputs among that many processes, each with an innocent of its own, and sums up.
`--share 3/32` executes the third of 32 parts of what `--executions` and `--seed` name, as on several machines. Neither
needs a network; where there is no redis-server, the target redis is left out. `--json FILE` takes a line of each share,
as it ends, and with `--processes` one of all. Ctrl-C and SIGTERM end it with what was done so far, and with 3.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from bench._attack_parts import in_processes
from bench._attack_share import Share
from bench._attack_tally import Record, Tally, json_line, total
from megatronapp.core.bounded_memory import bounded_memory
from megatronapp.core.logging import configure
from tests.attack.session import HANG_SECONDS, MOST_BYTES, Target, attack, resident_bytes
from tests.attack.targets import PROGRAMS, TARGETS

CHECK_EVERY = 500
"""Inputs from one look at the innocent to the next."""
PROGRESS_SECONDS = 15.0
WATCHDOG_SECONDS = 10 * HANG_SECONDS
"""Inputs that are executed at once, and a look at the innocent, which take longer end the process; so do a start and an
end."""
MAX_GROWTH_BYTES = 1 << 30
"""A target that has taken more is ended at once."""
MAX_HARMS = 1_000
"""So is one that was harmed so often."""
ENDED_EARLY = 3
"""What it ends with when it was ended before all inputs were executed, and no harm was seen until then."""
WARM_UP = 1_000
"""Inputs after which memory is measured for the first time: caches and buffers are filled by then."""


class Run:
    """One target's inputs, and what was seen."""

    def __init__(self, name: str, seeds: Sequence[int], failures: Path) -> None:
        self.name = name
        self.seeds = seeds
        self.failures = failures
        self.harms: Counter[str] = Counter()
        self.seen: dict[str, int] = {}
        """What came of the inputs."""
        self.executions = 0
        self._began = self._reported = time.monotonic()
        self._warm_bytes = 0

    async def attack(
        self, ended: Callable[[], bool] = lambda: False, progressed: Callable[[], None] = lambda: None
    ) -> bool:
        """Until `ended`; calls `progressed` as often as it reports. Whether nothing was harmed."""
        make, _ = TARGETS[self.name]
        target = make()
        self.seen = getattr(target, "seen", self.seen)
        self._began = self._reported = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            _watch()
            await target.start(Path(folder))
            try:
                with bounded_memory(MOST_BYTES):
                    await self._execute_all(target, ended, progressed)
            finally:
                _watch()
                await target.stop()
                faulthandler.cancel_dump_traceback_later()
        self._report()
        return not self.harms

    async def _execute_all(self, target: Target, ended: Callable[[], bool], progressed: Callable[[], None]) -> None:
        for first in range(0, len(self.seeds), target.at_once):
            if ended():
                break
            batch = self.seeds[first : first + target.at_once]
            _watch()
            await asyncio.gather(*(self._execute(target, seed) for seed in batch))
            await self._inspect(target, len(batch))
            if self._reports():
                progressed()
            if self._ends():
                break

    def tally(self) -> Tally:
        return Tally(self.name, len(self.seeds), self.executions, self.harms, Counter(self.seen))

    async def _execute(self, target: Target, seed: int) -> None:
        try:
            await attack(target, seed)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not be
            self._harmed(seed, f"{type(error).__name__}: {error}")

    async def _inspect(self, target: Target, executed: int) -> None:
        """At the innocent, the memory and the clock, now and then."""
        before, self.executions = self.executions, self.executions + executed
        if before // CHECK_EVERY != self.executions // CHECK_EVERY:
            try:
                await target.check()
            except Exception as error:  # noqa: BLE001
                self._harmed(-1, f"the innocent: {type(error).__name__}: {error}")
        if before < WARM_UP <= self.executions:
            self._warm_bytes = resident_bytes()

    def _reports(self) -> bool:
        if due := time.monotonic() - self._reported > PROGRESS_SECONDS:
            self._report()
        return due

    def _harmed(self, seed: int, harm: str) -> None:
        self.harms[harm[:200]] += 1
        with self.failures.open("a") as file:
            file.write(json.dumps({"target": self.name, "seed": seed, "harm": harm[:2_000]}) + "\n")

    def _ends(self) -> bool:
        """Whether more inputs would tell nothing new, or take the machine's memory."""
        grown = self._grown_bytes()
        if grown > MAX_GROWTH_BYTES:
            self._harmed(-1, f"memory has grown by {grown >> 20} MiB")
        return grown > MAX_GROWTH_BYTES or self.harms.total() >= MAX_HARMS

    def _grown_bytes(self) -> int:
        return max(0, resident_bytes() - self._warm_bytes) if self._warm_bytes else 0

    def _report(self) -> None:
        self._reported = now = time.monotonic()
        grown = self._grown_bytes()
        rate = self.executions / (now - self._began)
        print(
            f"{self.name:9} {self.executions:10,} inputs  {rate:7,.0f}/s  {sum(self.harms.values())} harms  "
            f"memory +{grown >> 20} MiB",
            flush=True,
        )


def _watch() -> None:
    """From now on, until the next call."""
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.attack", description=__doc__)
    parser.add_argument("--executions", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--targets", nargs="*", choices=list(TARGETS), help="default: all that can be had here")
    parser.add_argument("--share", type=Share.parse, default=Share(1, 1), metavar="I/N")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="lines are appended to it")
    parser.add_argument("--failures", type=Path, default=Path("attack-failures.jsonl"))
    parser.add_argument("--replay", type=Path, help="a file of failures")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.processes > 1 and (given.replay or given.share.of > 1):
        parser.error("--processes makes shares of its own: leave out --share and --replay")
    given.targets = given.targets or _targets_here()
    if not given.replay and not given.record:
        print(f"seed {given.seed}", flush=True)
    began = time.monotonic()

    def report(share: Share, tallies: Sequence[Tally]) -> None:
        if given.json:
            with given.json.open("a") as file:
                print(json_line(str(share), given.seed, time.monotonic() - began, tallies), file=file)

    tallies = in_processes(given, report) if given.processes > 1 else _here(given)
    report(given.share, tallies)
    return _concluded(tallies, time.monotonic() - began)


def _concluded(tallies: Sequence[Tally], seconds: float) -> int:
    """What the process ends with."""
    for tally in tallies:
        print(tally.text())
    whole = total(tallies)
    print(f"{whole.executions:,} of {whole.planned:,} inputs, {whole.harms.total()} harms, {seconds:.0f} s")
    if whole.harms:
        return 1
    return 0 if whole.executions == whole.planned else ENDED_EARLY


def _targets_here() -> list[str]:
    """All of which the programs are there."""
    missing = {name: program for name, program in PROGRAMS.items() if shutil.which(program) is None}
    for name, program in missing.items():
        print(f"{name} is left out: there is no {program} here")
    return [name for name in TARGETS if name not in missing]


def _here(given: argparse.Namespace) -> list[Tally]:
    configure("critical")
    warnings.simplefilter("ignore")
    plan: Mapping[str, Sequence[int]] = given.share.planned(given.targets, given.executions, given.seed)
    failures = given.failures
    if given.replay:
        plan, failures = _replayed(given.replay), given.replay.with_suffix(".again.jsonl")
    runs = [Run(name, seeds, failures) for name, seeds in plan.items()]

    def record(done: bool = False) -> None:
        if given.record:
            Record(given.record).write([run.tally() for run in runs], done=done)

    parent = os.getppid()
    with _asked_to_end() as asked:

        def ended() -> bool:
            """Also with the process whose share it is."""
            return asked.is_set() or (given.record is not None and os.getppid() != parent)

        for run in runs:
            if not ended():
                asyncio.run(run.attack(ended, record))
        record(done=not ended())
    return [run.tally() for run in runs]


@contextmanager
def _asked_to_end() -> Iterator[Event]:
    """Set by SIGINT and SIGTERM."""
    asked = Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _replayed(file: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in file.read_text().splitlines():
        failure = json.loads(line)
        found.setdefault(failure["target"], []).append(failure["seed"])
    return {name: [seed for seed in seeds if seed >= 0] for name, seeds in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
