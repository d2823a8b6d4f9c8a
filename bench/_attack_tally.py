"""What came of an attack: of one target, of one process, of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_SHOWN = 20
"""Kinds of harm of a target."""


@dataclass
class Tally:
    """What came of a target's inputs."""

    name: str
    planned: int = 0
    executions: int = 0
    harms: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Tally:
        return cls(
            value["name"], value["planned"], value["executions"], Counter(value["harms"]), Counter(value["seen"])
        )

    def as_json(self) -> dict[str, Any]:
        return vars(self)

    def add(self, other: Tally) -> None:
        self.planned += other.planned
        self.executions += other.executions
        self.harms += other.harms
        self.seen += other.seen

    def text(self) -> str:
        lines = [f"{self.name:9} {self.executions:10,} of {self.planned:,} inputs, {self.harms.total()} harms"]
        lines += [f"    {number:9,} {result}" for result, number in sorted(self.seen.items())]
        lines += [f"  HARM {number} x {harm}" for harm, number in self.harms.most_common(MAX_SHOWN)]
        return "\n".join(lines)


def summed(tallies: Iterable[Tally]) -> list[Tally]:
    """One of each target."""
    sums: dict[str, Tally] = {}
    for tally in tallies:
        sums.setdefault(tally.name, Tally(tally.name)).add(tally)
    return list(sums.values())


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally("all")
    for tally in tallies:
        whole.add(tally)
    return whole


def json_line(share: str, seed: int, seconds: float, tallies: Sequence[Tally]) -> str:
    """Of JSON: what these inputs came to."""
    whole = total(tallies)
    fields: dict[str, Any] = {"share": share, "seed": seed, "seconds": round(seconds, 1)}
    fields |= {"planned": whole.planned, "executions": whole.executions, "harms": whole.harms.total()}
    return json.dumps(fields | {"targets": [tally.as_json() for tally in tallies]})


@dataclass(frozen=True)
class Record:
    """A file in which a process writes time and again how far it is, so that it need not come to its end to tell."""

    path: Path

    def write(self, tallies: Sequence[Tally], *, done: bool) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({"done": done, "tallies": [tally.as_json() for tally in tallies]}))
        beside.replace(self.path)

    def read(self) -> tuple[list[Tally], bool]:
        """And whether the process came to its end. Nothing of one that has not begun."""
        try:
            fields = json.loads(self.path.read_text())
        except FileNotFoundError:
            return [], False
        return [Tally.of_json(value) for value in fields["tallies"]], fields["done"]
