"""A recording for the proving ground out of a real run's trace folder: `python -m bench.scale.record FOLDER FILE`.

Run a job for some thousand steps with `--trace --trace-dir FOLDER` on GPUs that nobody else uses. Steps with a
checkpoint, an evaluation or a compilation, and each attempt's first ones, are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bench.scale import recording
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.trace.membership import Membership
from megatronapp.detector.assemble import Assembler
from megatronapp.detector.engine import as_sent
from megatronapp.detector.formats import store, tracefolder
from megatronapp.detector.signals import matrix
from megatronapp.detector.steps import Floats, StepTable

FIRST_STEPS = 20
"""Of each attempt: kernels are chosen, memory is allocated, clocks settle."""


def attempts(folder: Path) -> Sequence[tracefolder.Attempt | store.StoredAttempt]:
    """Those of a trace folder, or of the collector's store. Raises UsageError where there is neither."""
    found: Sequence[tracefolder.Attempt | store.StoredAttempt]
    found = tracefolder.find_attempts(folder) or store.find_attempts(folder)
    if not found:
        raise UsageError(f"{folder} holds no trace; run a job with --trace --trace-dir {folder}")
    return found


def step_tables(attempt: tracefolder.Attempt | store.StoredAttempt) -> Iterable[StepTable]:
    membership, assembler, now = Membership(attempt.number), Assembler(), 0
    for message in attempt.messages():
        now = max(now, message.received_unix_ns)
        process = membership.apply(message)
        if process is not None:
            yield from assembler.feed(process, as_sent(message))
    yield from assembler.expire(now + 3_600 * 10**9)


def compute_seconds(tables: Iterable[StepTable]) -> Floats:
    """(steps, ranks): what each rank's passes took."""
    plain = [table for table in tables if not table.phases and len(table.rows)][FIRST_STEPS:]
    ranks = max((len(table.ranks) for table in plain), default=0)
    rows = [_of_step(table) for table in plain if len(table.ranks) == ranks]
    return np.stack(rows) if rows else np.zeros((0, ranks))


def _of_step(table: StepTable) -> Floats:
    seconds = np.nansum(matrix.compute(table).seconds, axis=1)
    return np.where(seconds > 0, seconds, np.nan)


def make(folder: Path, about: str) -> recording.Recording:
    parts = [compute_seconds(step_tables(attempt)) for attempt in attempts(folder)]
    longest = max(parts, key=len)
    steps, ranks = longest.shape
    return recording.of_seconds(longest, f"{about or folder.resolve().name}; {ranks} ranks, {steps} steps")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale.record", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run's trace folder, or the collector's store")
    parser.add_argument("file", type=Path, nargs="?", default=recording.DEFAULT, help=f"default: {recording.DEFAULT}")
    parser.add_argument("--about", default="", help="device, date, command: a text that goes with the numbers")
    options = parser.parse_args(argv)
    try:
        made = make(options.folder, options.about)
    except (DataError, UsageError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    recording.save(made, options.file)
    steps, ranks = made.compute.shape
    spread = 1.4826 * np.median(np.abs(made.compute))
    print(f"{options.file}: {steps} steps of {ranks} ranks, typical deviation {spread:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
