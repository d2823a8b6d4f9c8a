"""Traces of PyTorch's profiler (kineto), one file a rank, plain or gzip, of CUDA or ROCm devices or of the CPU alone.

What runs on the device belongs to the step in which the host launched it: a device lags behind its host, and a kernel
may end in the next step's window. A launch and its kernel bear the same correlation number. Whether it is of a forward
or a backward pass is the launching thread's business: autograd has threads of its own for backward passes.

Fields by https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp; times are microseconds.
"""

from __future__ import annotations

import gzip
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.json_file import load_json_file
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.detector.formats.understood import understood
from megatronapp.detector.steps import Floats

MAX_FILE_BYTES = 1 << 30
"""Of a file, unpacked."""
US = 1e-6
MAX_US = 1e17
"""Some three thousand years: times since 1970, and durations, lie below."""

_HEAD_BYTES = 1 << 16
_MARKS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"cpu_op"')
_KERNELS = frozenset({"kernel", "Kernel"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"})
_OPERATORS = frozenset({"cpu_op", "Operator"})
_STEP = re.compile(r"ProfilerStep#(\d+)")
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = re.compile(r"Optimizer\.step#.*\.step")
_COLLECTIVE_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?([A-Za-z]*)", re.IGNORECASE)
_ANY_COLLECTIVE = frozenset({"", "generic"})
"""RCCL has one kernel for all operations, ncclDevKernel_Generic."""
_RANK = re.compile(r"rank[-_]?(\d+)")


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank's device did in one step, or its CPU where it has no device; arrays of one entry an operation."""

    start: Floats
    """Seconds on the trace's own clock."""
    end: Floats
    name: tuple[str, ...]
    """Of the kernel."""
    operator: tuple[str, ...]
    """What called it on the host, such as `aten::mm`; empty: not told."""
    part: tuple[str, ...]
    """FORWARD, BACKWARD, OPTIMIZER, COPY or COMMUNICATION."""


FORWARD, BACKWARD, OPTIMIZER, COPY, COMMUNICATION = "forward", "backward", "optimizer", "copy", "communication"


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    rank: int | None
    """None: the trace does not tell."""
    world: int | None
    events: int
    """In the file."""
    on_device: bool
    steps: Mapping[int, Work]
    seconds: Mapping[int, float]
    """How long each step took on the host. A trace without steps is one, number 0."""


def find_traces(path: Path) -> list[Path]:
    """Kineto's files at a path: the file itself, or those in a folder."""
    files = [path] if path.is_file() else sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
    return [file for file in files if is_trace(file)]


def is_trace(file: Path) -> bool:
    if not file.name.endswith((".json", ".json.gz")):
        return False
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False
    return any(mark in head for mark in _MARKS)


def read_traces(files: Iterable[Path]) -> dict[int, KinetoTrace]:
    """By rank. Raises DataError for files that are none of kineto's, and where two are of one rank."""
    traces: dict[int, KinetoTrace] = {}
    of: dict[int, Path] = {}
    for file in files:
        trace = read(file)
        rank = _rank_of(trace, file)
        if rank in of:
            raise DataError(f"{of[rank]} and {file} are both of rank {rank}; put each run into a folder of its own")
        traces[rank], of[rank] = trace, file
    return dict(sorted(traces.items()))


def _rank_of(trace: KinetoTrace, file: Path) -> int:
    named = _RANK.search(file.name)
    rank = trace.rank if trace.rank is not None else int(named[1]) if named else 0
    if not 0 <= rank < MAX_WORLD:
        raise DataError(f"{file} is of rank {rank}; ranks count from 0 to {MAX_WORLD - 1}")
    return rank


def read(file: Path) -> KinetoTrace:
    """Raises DataError."""
    content = load_json_file(file, MAX_FILE_BYTES)
    header = content if isinstance(content, dict) else {}
    events = header.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise DataError(f"{file}: holds no list of trace events; it is not one of PyTorch's profiler's")
    with understood(file):
        distributed = header.get("distributedInfo") or {}
        rank, world = distributed.get("rank"), distributed.get("world_size")
        return _trace(events, None if rank is None else int(rank), None if world is None else int(world))


def _trace(events: list[dict[str, Any]], rank: int | None, world: int | None) -> KinetoTrace:
    timed = [event for event in events if event.get("ph") == "X"]
    host = _Host([event for event in timed if event.get("cat") in _OPERATORS])
    windows = _windows(timed)
    optimizers = [_span(event) for event in timed if _OPTIMIZER.fullmatch(str(event.get("name")))]
    launches = {
        event["args"]["correlation"]: event
        for event in timed
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", ())
    }
    on_device = [event for event in timed if event.get("cat") in _KERNELS | _COPIES]
    gathered: dict[int, list[tuple[float, float, str, str, str]]] = {step: [] for step in windows}
    for event in on_device or host.outermost:
        launch = launches.get(event.get("args", {}).get("correlation"), event) if on_device else event
        step = _step_at(windows, float(launch["ts"]))
        if step is not None:
            begin, end = _span(event)
            part = _part(event, launch, host, optimizers)
            operator = _operator(event, launch, host, part)
            gathered[step].append((begin * US, end * US, str(event["name"]), operator, part))
    return KinetoTrace(
        rank=rank,
        world=world,
        events=len(events),
        on_device=bool(on_device),
        steps={step: _work(rows) for step, rows in gathered.items()},
        seconds={step: (end - begin) * US for step, (begin, end) in windows.items()},
    )


def _work(rows: list[tuple[float, float, str, str, str]]) -> Work:
    rows.sort()
    start, end, name, operator, part = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Work(np.array(start, np.float64), np.array(end, np.float64), name, operator, part)


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    """Raises ValueError for times that no clock shows."""
    begin, duration = float(event["ts"]), float(event.get("dur", 0.0))
    if not (abs(begin) < MAX_US and abs(duration) < MAX_US):
        raise ValueError(f"an event begins at {begin} µs and lasts {duration} µs")
    return begin, begin + max(0.0, duration)


def _windows(timed: list[dict[str, Any]]) -> dict[int, tuple[float, float]]:
    """The steps by number, in order of time. Several events may tell of one step: of the host and of its streams."""
    windows: dict[int, tuple[float, float]] = {}
    for event in timed:
        named = _STEP.fullmatch(str(event.get("name")))
        if named and event.get("cat") != "gpu_user_annotation":
            windows.setdefault(int(named[1]), _span(event))
    if not windows:
        spans = [_span(event) for event in timed if event.get("cat") in _OPERATORS | _KERNELS | _COPIES | _LAUNCHES]
        return {0: (min(begin for begin, _ in spans), max(end for _, end in spans))} if spans else {}
    return dict(sorted(windows.items(), key=lambda window: window[1]))


def _step_at(windows: Mapping[int, tuple[float, float]], at: float) -> int | None:
    """The step whose window a moment lies in."""
    numbers = list(windows)
    place = bisect_right([windows[number][0] for number in numbers], at) - 1
    return numbers[place] if place >= 0 and at <= windows[numbers[place]][1] else None


def _part(
    event: Mapping[str, Any], launch: Mapping[str, Any], host: _Host, optimizers: list[tuple[float, float]]
) -> str:
    if event.get("cat") in _COPIES:
        return COPY
    if collective_of(event):
        return COMMUNICATION
    at = float(launch["ts"])
    if any(begin <= at <= end for begin, end in optimizers):
        return OPTIMIZER
    return BACKWARD if launch.get("tid") in host.backward_threads else FORWARD


def _operator(event: Mapping[str, Any], launch: Mapping[str, Any], host: _Host, part: str) -> str:
    if part == COMMUNICATION:
        return f"nccl:{collective_of(event)}"
    return str(event["name"]) if event is launch and event.get("cat") in _OPERATORS else host.operator_at(launch)


def collective_of(event: Mapping[str, Any]) -> str:
    """The name of a collective's kernel's operation, such as "allreduce"; empty for other kernels."""
    if name := event.get("args", {}).get("Collective name"):
        return str(name)
    kernel = _COLLECTIVE_KERNEL.match(str(event.get("name")))
    if kernel is None or event.get("cat") not in _KERNELS:
        return ""
    return "collective" if kernel[1].lower() in _ANY_COLLECTIVE else kernel[1].lower()


class _Host:
    """The host's operators by thread: which one runs at a moment, and which threads run backward passes."""

    def __init__(self, operators: list[dict[str, Any]]) -> None:
        self._threads: dict[Any, list[tuple[float, float, str]]] = {}
        for event in operators:
            begin, end = _span(event)
            self._threads.setdefault(event.get("tid"), []).append((begin, end, str(event["name"])))
        for thread in self._threads.values():
            thread.sort(key=lambda row: (row[0], -row[1]))
        self._begins = {tid: [begin for begin, _, _ in thread] for tid, thread in self._threads.items()}
        self.backward_threads = {e.get("tid") for e in operators if str(e.get("name")).startswith(_BACKWARD)}
        self.outermost = _outermost(operators)

    def operator_at(self, launch: Mapping[str, Any]) -> str:
        """The innermost operator around a launch; empty where there is none."""
        tid, at = launch.get("tid"), float(launch["ts"])
        thread = self._threads.get(tid, [])
        place = bisect_right(self._begins.get(tid, []), at) - 1
        for begin, end, name in reversed(thread[max(0, place - MAX_DEPTH) : place + 1]):
            if begin <= at <= end:
                return name
        return ""


MAX_DEPTH = 64
"""Operators before a launch that are looked at for the one around it: they nest less deeply, and those that have ended
before it lie between."""


def _outermost(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that lie in no other one of their thread."""
    found, until = [], dict[Any, float]()
    for event in sorted(operators, key=lambda e: (float(e["ts"]), -float(e.get("dur", 0.0)))):
        begin, end = _span(event)
        if begin >= until.get(event.get("tid"), -np.inf):
            found.append(event)
            until[event.get("tid")] = end
    return found
