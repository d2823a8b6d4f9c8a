"""One attack in several processes: the same inputs, each executed by one of them, and what came of all in one table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_SHOWN = 20
"""Kinds of harm of a target."""
LAST_WORDS = 3_000
"""Characters of what a process printed that ended without a result."""


@dataclass(frozen=True)
class Share:
    """The `number`-th of so many parts."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        number, _, of = text.partition("/")
        try:
            share = cls(int(number), int(of))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no share; write 3/32 for the third of 32 parts") from None
        if not 1 <= share.number <= share.of:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no share; the parts are 1/{share.of} to {share.of}/{share.of}"
            )
        return share

    def part(self, seeds: range) -> range:
        return seeds[len(seeds) * (self.number - 1) // self.of : len(seeds) * self.number // self.of]

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass
class Tally:
    """What came of a target's inputs."""

    name: str
    executions: int = 0
    harms: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Tally:
        return cls(value["name"], value["executions"], Counter(value["harms"]), Counter(value["seen"]))

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "executions": self.executions, "harms": self.harms, "seen": self.seen}

    def add(self, other: Tally) -> None:
        self.executions += other.executions
        self.harms += other.harms
        self.seen += other.seen

    def text(self) -> str:
        lines = [f"{self.name:9} {self.executions:10,} inputs in all, {self.harms.total()} harms"]
        lines += [f"    {number:9,} {result}" for result, number in sorted(self.seen.items())]
        lines += [f"  HARM {number} x {harm}" for harm, number in self.harms.most_common(MAX_SHOWN)]
        return "\n".join(lines)


class _Part:
    """A process with its share of the inputs."""

    def __init__(self, given: argparse.Namespace, share: Share, folder: Path) -> None:
        self.share = share
        self._log = folder / f"{share.number}.log"
        self._tallies = folder / f"{share.number}.json"
        command = [
            sys.executable, "-m", "bench.attack", "--executions", str(given.executions), "--seed", str(given.seed),
            "--share", str(share), "--failures", str(given.failures), "--tallies", str(self._tallies),
            "--targets", *given.targets,
        ]  # fmt: skip
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def tallies(self) -> list[Tally]:
        """Of a process that has ended. One that was ended before it could tell is a harm of its own."""
        if self._tallies.exists():
            return [Tally.of_json(value) for value in json.loads(self._tallies.read_text())]
        print(self._log.read_text(errors="replace")[-LAST_WORDS:])
        return [Tally("process", 0, Counter({f"{self.share} ended with {self.process.returncode}": 1}))]


def in_processes(given: argparse.Namespace) -> list[Tally]:
    """All parts at once; prints a line as each ends."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shares = [Share(number, given.processes) for number in range(1, given.processes + 1)]
        parts = [_Part(given, share, Path(folder)) for share in shares]
        try:
            return _sum(parts, began)
        finally:
            for part in parts:
                part.process.kill()
                part.process.wait()


def _sum(parts: list[_Part], began: float) -> list[Tally]:
    summed: dict[str, Tally] = {}
    for part in parts:
        part.process.wait()
        for tally in part.tallies():
            summed.setdefault(tally.name, Tally(tally.name)).add(tally)
        executions = sum(tally.executions for tally in summed.values())
        harms = sum(tally.harms.total() for tally in summed.values())
        print(
            f"{part.share}: {executions:,} inputs so far, {harms} harms, {time.monotonic() - began:.0f} s", flush=True
        )
    return list(summed.values())
