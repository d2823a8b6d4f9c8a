"""Pool: one table of the jobs of several processes, of which each wrote a file by `python -m bench.scale --json`; those
that were ended early have written the jobs that were through.

python -m bench.scale.pool FILE [FILE …]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.scale import hangs, report
from bench.scale.hangs import Stall
from bench.scale.scenarios import Trial
from bench.scale.scoring import Detection, Outcome


def jobs(lines: Iterable[str]) -> Iterator[tuple[Trial, Outcome]]:
    """Of all suites but hangs. Raises ValueError for a seed that comes twice: it would count twice."""
    known: set[Trial] = set()
    for numbers in map(json.loads, lines):
        if "job" not in numbers:
            continue
        trial = Trial(**numbers["job"])
        if trial in known:
            raise ValueError(f"{trial.name} with seed {trial.seed} stands in the files twice")
        known.add(trial)
        outcome = numbers["outcome"]
        yield trial, Outcome(**outcome | {"detections": [Detection(**each) for each in outcome["detections"]]})


def stalls(lines: Iterable[str]) -> dict[int, list[Stall]]:
    """Those of `hangs`, by ranks."""
    found = defaultdict(list)
    for numbers in map(json.loads, lines):
        if "stall" in numbers:
            found[numbers["ranks"]].append(Stall(**numbers["stall"]))
    return found


def tables(lines: Sequence[str]) -> Iterator[str]:
    by_kind: dict[tuple[str, float], list[tuple[Trial, Outcome]]] = defaultdict(list)
    for trial, outcome in jobs(lines):
        # Short steps have a line of their own: in GPU-days they would vanish beside long ones.
        by_kind[trial.suite, min(trial.step_seconds, 15.0)].append((trial, outcome))
    for (suite, seconds), done in sorted(by_kind.items()):
        places = sorted({trial.seed for trial, _ in done})
        table = report.healthy_table if suite == "healthy" else report.faults_table
        found = report.lines(done)
        steps = "15 s or more" if seconds == 15.0 else f"{seconds:g} s"
        yield f"\n{suite}, steps of {steps}, {len(places)} seeds of {places[0]} … {places[-1]}\n{table(found)}"
        yield from (f"  {line.name}: {stray}" for line in found for stray in line.strays)
    yield from (hangs.line(ranks, found) for ranks, found in sorted(stalls(lines).items()))


def main(argv: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m bench.scale.pool", description=__doc__)
    known.add_argument("files", nargs="+", type=Path, metavar="FILE")
    wanted = known.parse_args(argv)
    try:
        for text in tables([line for file in wanted.files for line in file.read_text().splitlines()]):
            print(text)
    except (OSError, ValueError, TypeError, KeyError) as error:
        known.error(f"{error}; the files must be of bench.scale --json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
