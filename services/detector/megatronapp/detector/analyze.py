"""`megatronapp analyze PATH`: the streaming detector's rules over what a job has left behind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from megatronapp.core.errors import MegatronAppError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.trace.megascan import find_files, read_megascan
from megatronapp.detector.formats import bytedance, flight_recorder, kineto, megatrace, store, tracefolder, xpu_timer
from megatronapp.detector.offline import (
    hung_job,
    kineto_job,
    megascan_job,
    megatrace_job,
    recorded_job,
    scraped_job,
    traced_job,
)
from megatronapp.detector.report import Report


def analyze(path: Path) -> Report:
    """Judge a recorded job: our trace folder, a run in the collector's store, MegaScan's files, traces of
    PyTorch's profiler, a straggler-analysis table, flight-recorder dumps, Megatrace's logs, or a scrape of xpu_timer.

    Raises NotFoundError when there is nothing, UsageError when it is of no known kind, DataError when it is damaged,
    UnavailableError when it can't be read, or changes meanwhile.
    """
    try:
        return _judge(path)
    except OSError as error:
        where = error.filename or path
        raise UnavailableError(
            f"{path}: {where} can't be read ({error.strerror}); name the folder of the trace itself, one that you may "
            "read and that nobody changes"
        ) from error


def _judge(path: Path) -> Report:
    if not path.exists():
        raise NotFoundError(f"{path}: not found")
    if traces := kineto.find_traces(path):
        return kineto_job(path.name.split(".")[0], kineto.read_traces(traces))
    if find_files(path):
        return megascan_job(path.stem, read_megascan(path))
    if path.is_file():
        if bytedance.is_bytedance(path):
            return recorded_job(bytedance.read(path))
        if xpu_timer.is_scrape(path):
            return scraped_job(path.name, xpu_timer.read(path))
        if path.suffix == ".pb":
            raise UsageError(f"{path}: one rank of a trace; give its folder: megatronapp analyze {path.parent}")
        raise UsageError(f"{path}: not a trace that can be analysed; {KNOWN}")
    if stored := store.find_attempts(path):
        return traced_job(stored, "megatronapp store")
    if attempts := tracefolder.find_attempts(path):
        return traced_job(attempts)
    if dumps := flight_recorder.find_dumps(path):
        return hung_job(path.name, flight_recorder.read(dumps))
    if logs := megatrace.find_logs(path):
        return megatrace_job(path.name, megatrace.read(logs))
    raise NotFoundError(f"{path}: holds no trace; {KNOWN}")


KNOWN = (
    "known are trace folders of `megatronapp train --trace` (rank-<n>.pb), the folder of `megatronapp up` or a run in "
    "its store, MegaScan's JSON files, traces of PyTorch's profiler (*.json, *.json.gz), straggler-analysis tables "
    "(trace-<name>.parquet with meta-<name>.yaml), folders of flight-recorder dumps (<prefix>_<rank>), folders "
    "of Megatrace's logs (rank_<n>.log), and scrapes of xpu_timer"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; errors are one line on stderr."""
    parser = argparse.ArgumentParser(prog="megatronapp analyze", description=analyze.__doc__)
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    try:
        report = analyze(arguments.path)
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.as_json(), indent=2) if arguments.json else report.as_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
