"""How soon hangs were told of: what tests noted, as a table. `python -m tests.integration.megatrace.times FILE`

The exit code is 1 where one was not told of within 10 s.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

VARIABLE = "MEGATRONAPP_MEGATRACE_TIMES"
"""A file to which each hang adds a line."""
MOST_SECONDS = 10.0


def note(fault: str, seconds: float | None) -> None:
    """From the fault's begin to the finding; None: there was none."""
    if file := os.environ.get(VARIABLE):
        with Path(file).open("a") as lines:
            lines.write(json.dumps({"fault": fault, "seconds": seconds}) + "\n")


def table(lines: Iterable[str]) -> tuple[str, bool]:
    """The table, and whether all were told of in time."""
    by_fault: dict[str, list[float | None]] = {}
    for line in lines:
        noted = json.loads(line)
        by_fault.setdefault(noted["fault"], []).append(noted["seconds"])
    rows = [f"{'fault':<28} {'played':>6} {'told':>5} {'median s':>9} {'longest s':>9}"]
    for fault, seconds in by_fault.items():
        told = [each for each in seconds if each is not None]
        numbers = f"{median(told):9.1f} {max(told):9.1f}" if told else f"{'-':>9} {'-':>9}"
        rows.append(f"{fault:<28} {len(seconds):>6} {len(told):>5} {numbers}")
    late = [each for seconds in by_fault.values() for each in seconds if each is None or each > MOST_SECONDS]
    rows.append(f"not told of within {MOST_SECONDS:.0f} s: {len(late)}")
    return "\n".join(rows), not late


def main(arguments: Sequence[str]) -> int:
    text, in_time = table(Path(arguments[0]).read_text().splitlines())
    print(text)
    return 0 if in_time else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
