"""Pool: tables of jobs that were played in several processes, or on several machines, of which each wrote a file by
`python -m bench.scale --json`; those that were ended early have written the jobs that were through.

python -m bench.scale.pool FILE [FILE …]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.scale import hangs, report
from bench.scale.hangs import Stall, Stop
from bench.scale.report import Line
from bench.scale.scenarios import FAULTS, MODELS, Trial
from bench.scale.scoring import Detection, Outcome
from bench.scale.work import Result, Unit
from megatronapp.core.errors import DataError

_ORDER = (*MODELS, "recorded", *FAULTS)
"""Of names in the tables."""
LONG = 15.0
"""Seconds of a step from which on all are told together."""


@dataclass
class Pool:
    """Jobs that were played, in any order."""

    jobs: list[tuple[Trial, Outcome]] = field(default_factory=list)
    stalls: dict[int, list[Stall]] = field(default_factory=lambda: defaultdict(list))
    """Those of `hangs`, by ranks."""
    units: set[Unit] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.units)

    def add(self, unit: Unit, result: Result) -> dict[str, object]:
        """Returns what a file says of the job. Raises ValueError for a job that comes twice: it would count twice."""
        if unit in self.units:
            raise ValueError(f"{unit} stands in the files twice")
        self.units.add(unit)
        if isinstance(unit, Stop) and isinstance(result, Stall):
            self.stalls[unit.world].append(result)
            return {"suite": "hangs", "ranks": unit.world, "seed": unit.seed, "stall": asdict(result)}
        assert isinstance(unit, Trial)
        assert isinstance(result, Outcome)
        self.jobs.append((unit, result))
        return {"suite": unit.suite, "job": asdict(unit), "outcome": asdict(result)}

    def kinds(self) -> list[Kind]:
        """Short steps have tables of their own: in GPU-days they would vanish beside long ones."""
        found: dict[tuple[str, float], list[tuple[Trial, Outcome]]] = defaultdict(list)
        for trial, outcome in sorted(self.jobs, key=lambda job: _place(job[0])):
            found[trial.suite, min(trial.step_seconds, LONG)].append((trial, outcome))
        return [
            Kind(*name, sorted({t.seed for t, _ in done}), report.lines(done)) for name, done in sorted(found.items())
        ]

    def text(self) -> str:
        return "\n".join(
            [kind.text() for kind in self.kinds()]
            + [hangs.line(ranks, found) for ranks, found in sorted(self.stalls.items())]
        )


@dataclass(frozen=True)
class Kind:
    """One suite's jobs with steps of one length, or of LONG and more."""

    suite: str
    seconds: float
    seeds: Sequence[int]
    lines: Sequence[Line]

    def text(self) -> str:
        steps = f"{LONG:g} s or more" if self.seconds == LONG else f"{self.seconds:g} s"
        seeds = f"{len(self.seeds)} seeds of {self.seeds[0]} … {self.seeds[-1]}"
        table = report.healthy_table if self.suite == "healthy" else report.faults_table
        strays = [f"  {line.name}: {stray}" for line in self.lines for stray in line.strays]
        return "\n".join([f"\n{self.suite}, steps of {steps}, {seeds}", table(self.lines), *strays])

    def as_json(self) -> Iterator[dict[str, object]]:
        """Its lines."""
        for line in self.lines:
            yield {"suite": self.suite, "step_seconds": self.seconds} | line.as_json()


def _place(trial: Trial) -> tuple[object, ...]:
    """In a table."""
    return _ORDER.index(trial.scenario), trial.size, trial.world, trial.seed, trial.step_seconds


def of_files(files: Iterable[Path]) -> Pool:
    """Raises DataError."""
    pool = Pool()
    try:
        for numbers in (json.loads(line) for file in files for line in file.read_text().splitlines()):
            if "job" in numbers or "stall" in numbers:
                pool.add(*_of_json(numbers))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{error}; the files must be of bench.scale --json") from error
    return pool


def _of_json(numbers: dict[str, Any]) -> tuple[Unit, Result]:
    if "stall" in numbers:
        return Stop(numbers["ranks"], numbers["seed"]), Stall(**numbers["stall"])
    outcome = numbers["outcome"]
    detections = [Detection(**each) for each in outcome["detections"]]
    return Trial(**numbers["job"]), Outcome(**outcome | {"detections": detections})


def main(argv: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m bench.scale.pool", description=__doc__)
    known.add_argument("files", nargs="+", type=Path, metavar="FILE")
    wanted = known.parse_args(argv)
    try:
        print(of_files(wanted.files).text())
    except DataError as error:
        known.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
