"""Dumps of NCCL Inspector, one file a process, one JSON object a line: what each collective took on the device.

    {"header": {"id": "0x9e..", "rank": 0, "n_ranks": 8, "nnodes": 1, ..}, "metadata": {"hostname": .., "pid": ..,
     "dump_timestamp_us": ..}, "coll_perf": {"coll": "AllReduce", "coll_sn": 12, "coll_msg_size_bytes": 4194304,
     "coll_exec_time_us": 61, "coll_busbw_gbs": 120.3, ..}}

By https://github.com/NVIDIA/nccl/blob/master/plugins/profiler/inspector/inspector_json.cc (format v4.0 on). A kernel
runs from when its own rank comes until all have come and data has moved: who comes last is in it shortest, and the
others are in it longer by what they wait. `rank` counts within the communicator; a process's rank in the largest one,
if that has all processes, is its global rank.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.detector.formats.understood import understood
from megatronapp.detector.steps import Floats

MAX_FILE_BYTES = 256 << 20
MAX_LINE_BYTES = 1 << 20
MAX_SECONDS = 1e6
LOOKED_AT_BYTES = 1 << 14
MIN_OPERATIONS = 20
"""Of a communicator that is judged."""
MOSTLY = 0.8
"""Share of the operations that a rank comes last to, if it is late."""
LEAST_COST = 0.01
US = 1e-6
_NAMES = ("*.log", "*.json", "*.jsonl")
_MARK = re.compile(rb'"header"\s*:\s*\{[^{}]*"n_ranks"')

Process = tuple[str, int]
"""Host and process id."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """The operations of one communicator that all members have told, in order."""

    communicator: str
    ranks: tuple[int, ...]
    seconds: Floats
    """operations x ranks: how long each was in it."""
    bytes: Floats
    """Of each operation."""


@dataclass(frozen=True, slots=True)
class Inspected:
    ranks: tuple[int, ...]
    records: int
    span_seconds: float
    """From the first dump to the last; at least what a rank spent in collectives."""
    collectives: tuple[Collectives, ...]
    unclear: frozenset[int]
    """Ranks of communicators a member of which left no dump: they may have waited for that one."""


@dataclass(frozen=True, slots=True)
class Late:
    rank: int
    communicator: str
    last_ratio: float
    """Share of the communicator's operations that it came last to."""
    waited_seconds: float
    """Median member's, in all."""
    cost_ratio: float


def find_dumps(path: Path) -> list[Path]:
    """Inspector's files at a path: the file itself, or those in a folder."""
    files = [path] if path.is_file() else sorted({file for name in _NAMES for file in path.glob(name)})
    return [file for file in files if file.is_file() and _is_dump(file)]


def _is_dump(file: Path) -> bool:
    with file.open("rb") as opened:
        return _MARK.search(opened.read(LOOKED_AT_BYTES)) is not None


@dataclass(frozen=True, slots=True)
class _Record:
    process: Process
    communicator: str
    rank: int
    size: int
    number: int
    seconds: float
    bytes: float


def read(files: list[Path]) -> Inspected:
    """Raises DataError."""
    records: list[_Record] = []
    moments: list[float] = []
    for file in files:
        found, at = _read(file)
        records += found
        moments += at
    if not records:
        raise DataError(f"{files[0]}: holds no collective; let NCCL Inspector dump while the job runs")
    global_rank = _global_ranks(records)
    spent: defaultdict[int, float] = defaultdict(float)
    for record in records:
        spent[global_rank[record.process]] += record.seconds
    members = _members(records, global_rank)
    return Inspected(
        ranks=tuple(sorted(set(global_rank.values()))),
        records=len(records),
        span_seconds=max(max(moments) - min(moments), max(spent.values())),
        collectives=tuple(each for group, of in members.items() if (each := _collectives(group, of)) is not None),
        unclear=frozenset(rank for of in members.values() if not _whole(of) for rank in of),
    )


def _read(file: Path) -> tuple[list[_Record], list[float]]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{file}: larger than {MAX_FILE_BYTES >> 20} MiB, the most of a dump that is read")
    records, moments = [], []
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip(b"\0 \r\t")]
    for number, line in enumerate(lines):
        with understood(file, f"line {number + 1} can't be understood"):
            try:
                value = json.loads(line[:MAX_LINE_BYTES])
            except ValueError:
                if number == len(lines) - 1:
                    break  # it was being written
                raise
            metadata = value["metadata"]
            moments.append(_bounded(metadata["dump_timestamp_us"], 1e18) * US)
            if "coll_perf" in value:
                records.append(_record(value["header"], metadata, value["coll_perf"]))
    return records, moments


def _record(header: Any, metadata: Any, performance: Any) -> _Record:
    rank, size = int(header["rank"]), int(header["n_ranks"])
    if not 0 <= rank < size <= MAX_WORLD:
        raise ValueError(f"rank {rank} of {size}")
    return _Record(
        process=(str(metadata["hostname"]), int(metadata["pid"])),
        communicator=str(header["id"]),
        rank=rank,
        size=size,
        number=int(_bounded(performance["coll_sn"], 2**63)),
        seconds=_bounded(performance["coll_exec_time_us"], MAX_SECONDS / US) * US,
        bytes=_bounded(performance["coll_msg_size_bytes"], 2**63),
    )


def _bounded(value: Any, most: float) -> float:
    number = float(value)
    if not 0 <= number <= most:
        raise ValueError(f"{number} is out of range")
    return number


def _global_ranks(records: list[_Record]) -> dict[Process, int]:
    """By the largest communicator, where all processes are in it; else numbered in the order of their names."""
    processes = sorted({record.process for record in records})
    largest = max(records, key=lambda record: record.size)
    ranks = {record.process: record.rank for record in records if record.communicator == largest.communicator}
    if ranks.keys() >= set(processes) and len(set(ranks.values())) == len(processes):
        return ranks
    return {process: number for number, process in enumerate(processes)}


Members = Mapping[int, Mapping[int, _Record]]
"""Of a communicator: what each rank has told, by number."""


def _members(records: list[_Record], global_rank: Mapping[Process, int]) -> dict[str, Members]:
    members: defaultdict[str, dict[int, dict[int, _Record]]] = defaultdict(dict)
    for record in records:
        members[record.communicator].setdefault(global_rank[record.process], {})[record.number] = record
    return dict(sorted(members.items()))


def _whole(members: Members) -> bool:
    first = next(iter(next(iter(members.values())).values()))
    return len(members) == first.size


def _collectives(communicator: str, members: Members) -> Collectives | None:
    ranks = tuple(sorted(members))
    numbers = sorted(set.intersection(*(set(own) for own in members.values())))
    if len(ranks) < 2 or not numbers or not _whole(members):
        return None
    seconds = np.array([[members[rank][number].seconds for rank in ranks] for number in numbers])
    sizes = np.array([members[ranks[0]][number].bytes for number in numbers])
    return Collectives(communicator, ranks, seconds, sizes)


def late(inspected: Inspected) -> list[Late]:
    """Who makes others wait and does not itself wait for anybody elsewhere; those that cost most first."""
    waits: dict[int, float] = {}
    found: dict[int, Late] = {}
    for each in inspected.collectives:
        if len(each.seconds) < MIN_OPERATIONS:
            continue
        waited = each.seconds - each.seconds.min(axis=1, keepdims=True)
        last = np.bincount(np.argmin(each.seconds, axis=1), minlength=len(each.ranks)) / len(each.seconds)
        for column, rank in enumerate(each.ranks):
            others = float(np.median(np.delete(waited, column, axis=1), axis=1).sum())
            waits[rank] = max(waits.get(rank, 0.0), float(waited[:, column].sum()))
            cost = others / inspected.span_seconds if inspected.span_seconds else 0.0
            known = found.get(rank)
            if last[column] >= MOSTLY and cost >= LEAST_COST and (known is None or others > known.waited_seconds):
                ratio = 1 / max(1 - cost, 0.01)
                found[rank] = Late(rank, each.communicator, float(last[column]), others, ratio)
    own = [
        one for one in found.values() if waits[one.rank] < one.waited_seconds / 2 and one.rank not in inspected.unclear
    ]
    return sorted(own, key=lambda one: -one.waited_seconds)
