"""`megatronapp analyze PATH`: the streaming detector's rules over what a job has left behind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from megatronapp.core.errors import MegatronAppError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.findings import Kind
from megatronapp.core.trace.megascan import find_files, read_megascan
from megatronapp.detector.formats import (
    bytedance,
    flight_recorder,
    inspector,
    inspector_metrics,
    kineto,
    megatrace,
    store,
    tracefolder,
    work_requests,
    xpu_timer,
)
from megatronapp.detector.formats.layout import Layout, read_config
from megatronapp.detector.offline import (
    hung_job,
    kineto_job,
    megascan_job,
    megatrace_job,
    recorded_job,
    scraped_job,
    traced_job,
)
from megatronapp.detector.offline_nccl import inspected_job, metrics_job, ports_job
from megatronapp.detector.report import Report

ALL, HANG, SLOW, PARALLEL, OPERATORS = KINDS = ("all", "hang", "slow", "parallel", "operators")


def analyze(path: Path, kind: str = ALL, config: Path | None = None) -> Report:
    """Judge a recorded job: our trace folder, a run in the collector's store, MegaScan's files, traces of
    PyTorch's profiler, a straggler-analysis table, flight-recorder dumps, Megatrace's logs, or a scrape of xpu_timer.

    kind: which part of it, one of KINDS. config: a config.yaml that tells TP, PP and world_size of Megatrace's logs.
    Raises NotFoundError when there is nothing, UsageError when it is of no known kind or does not tell what is asked,
    ConfigError for a wrong config, DataError when it is damaged, UnavailableError when it can't be read, or changes
    meanwhile.
    """
    layout = read_config(config) if config is not None else None
    try:
        return _only(_judge(path, layout), kind, path)
    except OSError as error:
        where = error.filename or path
        raise UnavailableError(
            f"{path}: {where} can't be read ({error.strerror}); name the folder of the trace itself, one that you may "
            "read and that nobody changes"
        ) from error


def analyze_scenarios(path: Path, kind: str = ALL) -> dict[str, Report]:
    """By name each scenario of a folder whose folders hold flight-recorder dumps; empty where it is none. Raises as
    `analyze`."""
    if not path.is_dir() or flight_recorder.find_dumps(path):
        return {}
    return {each.name: analyze(each, kind) for each in flight_recorder.find_scenarios(path)}


def _only(report: Report, kind: str, path: Path) -> Report:
    """The part of a report that is asked for. Raises UsageError."""
    job, findings = report.job, report.findings
    if kind == HANG:
        hangs = tuple(f for f in findings if f.kind is Kind.HANG)
        return report.model_copy(update={"findings": hangs, "job": job.model_copy(update={"parallel": None})})
    if kind in (SLOW, PARALLEL):
        slow = tuple(f for f in findings if f.kind is not Kind.HANG)
        report = report.model_copy(update={"findings": slow, "hang": None})
    if kind == PARALLEL and job.parallel is None:
        why = job.notes[0] if job.notes else "those are told of Megatrace's logs"
        raise UsageError(f"{path} ({job.format}) does not tell who is late in which group: {why}")
    if kind == OPERATORS:
        if job.breakdown is None:
            raise UsageError(f"{path} ({job.format}) has no operators; give traces of PyTorch's profiler (*.json)")
        return report.model_copy(update={"findings": (), "hang": None})
    return report


def _judge(path: Path, layout: Layout | None = None) -> Report:
    if not path.exists():
        raise NotFoundError(f"{path}: not found")
    if layout is not None:
        return _judge_logs(path, layout)
    if traces := kineto.find_traces(path):
        return kineto_job(path.name.split(".")[0], kineto.read_traces(traces))
    if inspected := inspector.find_dumps(path):
        return inspected_job(path.name, inspector.read(inspected))
    if metrics := inspector_metrics.find_files(path):
        return metrics_job(path.name, inspector_metrics.read(metrics))
    if find_files(path):
        return megascan_job(path.stem, read_megascan(path))
    return _judge_file(path) if path.is_file() else _judge_folder(path)


def _judge_file(path: Path) -> Report:
    if bytedance.is_bytedance(path):
        return recorded_job(bytedance.read(path))
    if xpu_timer.is_scrape(path):
        return scraped_job(path.name, xpu_timer.read(path))
    if path.suffix == ".pb":
        raise UsageError(f"{path}: one rank of a trace; give its folder: megatronapp analyze {path.parent}")
    raise UsageError(f"{path}: not a trace that can be analysed; {KNOWN}")


def _judge_folder(path: Path) -> Report:
    if stored := store.find_attempts(path):
        return traced_job(stored, "megatronapp store")
    if attempts := tracefolder.find_attempts(path):
        return traced_job(attempts)
    if dumps := flight_recorder.find_dumps(path):
        return hung_job(path.name, flight_recorder.read(dumps))
    if megatrace.find_logs(path):
        return _judge_logs(path, None)
    if ports := work_requests.find_files(path):
        return ports_job(path.name, work_requests.read(ports))
    raise NotFoundError(f"{path}: holds no trace; {KNOWN}")


def _judge_logs(path: Path, layout: Layout | None) -> Report:
    logs = megatrace.find_logs(path) if path.is_dir() else {}
    if not logs:
        raise UsageError(f"{path}: a config.yaml is for Megatrace's logs (a folder of rank_<n>.log), and it holds none")
    return megatrace_job(path.name, megatrace.read(logs, layout.world if layout else None), layout)


KNOWN = (
    "known are trace folders of `megatronapp train --trace` (rank-<n>.pb), the folder of `megatronapp up` or a run in "
    "its store, MegaScan's JSON files, traces of PyTorch's profiler (*.json, *.json.gz), straggler-analysis tables "
    "(trace-<name>.parquet with meta-<name>.yaml), folders of flight-recorder dumps (<prefix>_<rank>), folders "
    "of Megatrace's logs (rank_<n>.log) or its telemetry (<host>_<nic>_Port<n>_A.log), dumps of NCCL Inspector (JSON "
    "or *.prom), "
    "and scrapes of xpu_timer"
)


DESCRIPTION = """Name what is slow or hangs in a recorded run, and what it costs. What to look for comes before PATH, as
in `megatronapp analyze slow logs`: hang, slow, parallel (who is late in TP, DP and PP groups), operators (where the
time of PyTorch's profiler goes), or all."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see megatronapp analyze --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """kind, path, config, json and verbose. Megatrace's own flags are understood as well. Raises UsageError."""
    parser = _Parser(prog="megatronapp analyze", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("what", nargs="*", metavar="[all|hang|slow|parallel|operators] PATH", help=KNOWN)
    parser.add_argument("--config", "--config-path", type=Path, metavar="config.yaml", help="TP, PP and world_size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell all operators, ranks and evidence")
    parser.add_argument("--log-path", "--logs-path", metavar="PATH", help="the same as PATH, as Megatrace calls it")
    parser.add_argument(
        "--test-type", choices=(ALL, HANG, SLOW, PARALLEL), help="what to look for, as Megatrace calls it"
    )
    parser.add_argument("--max-save-count-groups", type=int, help="without effect: a log is read whole")
    given = parser.parse_intermixed_args(argv)
    words = [*given.what, *([given.log_path] if given.log_path else [])]
    kind = words.pop(0) if len(words) > 1 and words[0] in KINDS else None
    if given.test_type and kind:
        raise UsageError(f"{kind} and --test-type {given.test_type} both say what to look for; give one of them")
    if len(words) != 1:
        raise UsageError("give one PATH, behind what to look for if that is not all; see megatronapp analyze --help")
    given.kind, given.path = kind or given.test_type or ALL, Path(words[0])
    if not given.path.exists() and given.what and given.what[0] in KINDS and len(given.what) == 1:
        raise UsageError(f"what is to be searched for {given.what[0]}? Give a PATH behind it")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; errors are one line on stderr."""
    try:
        given = parse(sys.argv[1:] if argv is None else argv)
        scenarios = _scenarios(given)
        report = None if scenarios else analyze(given.path, given.kind, given.config)
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if given.json:
        found = report.as_json() if report else {"scenarios": {name: r.as_json() for name, r in scenarios.items()}}
        print(json.dumps(found, indent=2))
        return 0
    reports = [report] if report else scenarios.values()
    print("\n\n".join(each.as_text(given.verbose, given.kind == PARALLEL) for each in reports))
    return 0


def _scenarios(given: argparse.Namespace) -> dict[str, Report]:
    try:
        return analyze_scenarios(given.path, given.kind) if given.config is None else {}
    except OSError:
        return {}  # `analyze` says why it can't be read


if __name__ == "__main__":
    sys.exit(main())
