"""NCCL Inspector's Prometheus text, a file a GPU (`nccl_inspector_metrics_<uuid>.prom`) or several in one: the mean
time that a GPU was in collectives of each kind, and their bus bandwidth, since the last dump.

    nccl_collective_exec_time_microseconds{node="n1",gpu="..",comm_name="..",nranks="8",collective="AllReduce",
        message_size="4-5MB",algo_proto="RING_LL", ..} 812.5

By https://github.com/NVIDIA/nccl/blob/master/plugins/profiler/inspector/inspector_prom.cc. Who comes last is in a
collective shortest (inspector.py). Labels do not tell members of a communicator from those of another with the same
name, nor ranks: GPUs are named, and nobody is woken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from megatronapp.core.errors import DataError
from megatronapp.detector.formats.understood import NONSENSE, one_line

EXEC_TIME = "nccl_collective_exec_time_microseconds"
MARK = b"nccl_collective_exec_time_microseconds{"
MAX_FILE_BYTES = 16 << 20
LOOKED_AT_BYTES = 1 << 16
SHORTER = 0.5
"""Of the median of the other GPUs, in every kind of collectives that they share: the others wait for it."""
MIN_GPUS = 3
"""Of two nobody can tell which of them is usual."""
_OWN = frozenset({"gpu", "node"})
US = 1e-6

Gpu = tuple[str, str]
"""Node and GPU."""


@dataclass(frozen=True, slots=True)
class WaitedFor:
    gpu: Gpu
    ratio: float
    """The others' time in collectives ÷ its own, at the least."""


def find_files(path: Path) -> list[Path]:
    """The file itself, or the *.prom files of a folder, that have Inspector's metrics."""
    files = [path] if path.is_file() else sorted(path.glob("*.prom"))
    return [file for file in files if file.is_file() and _is_metrics(file)]


def _is_metrics(file: Path) -> bool:
    with file.open("rb") as opened:
        return MARK in opened.read(LOOKED_AT_BYTES)


def read(files: list[Path]) -> dict[Gpu, dict[str, float]]:
    """Seconds in a collective, mean, by GPU and kind of collective. Raises DataError."""
    found: defaultdict[Gpu, dict[str, float]] = defaultdict(dict)
    for file in files:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{file}: larger than {MAX_FILE_BYTES >> 20} MiB, the most of metrics that is read")
        try:
            families = list(text_string_to_metric_families(file.read_text()))
            samples = [sample for family in families for sample in family.samples if sample.name == EXEC_TIME]
            for sample in samples:
                kind = ", ".join(f"{key} {value}" for key, value in sorted(sample.labels.items()) if key not in _OWN)
                if not 0 <= sample.value < np.inf:
                    raise ValueError(f"a time of {sample.value}")
                found[sample.labels["node"], sample.labels["gpu"]][kind] = sample.value * US
        except NONSENSE as error:
            raise DataError(f"{file}: not readable as NCCL Inspector's metrics: {one_line(error)}") from error
    return dict(found)


def waited_for(times: Mapping[Gpu, Mapping[str, float]]) -> WaitedFor | None:
    """The GPU that all others wait for; None where there is none, or more than one."""
    kinds = {kind for own in times.values() for kind in own}
    ratios: defaultdict[Gpu, list[float]] = defaultdict(list)
    for kind in kinds:
        own = {gpu: by_kind[kind] for gpu, by_kind in times.items() if kind in by_kind}
        if len(own) < MIN_GPUS:
            continue
        for gpu, seconds in own.items():
            others = float(np.median([other for name, other in own.items() if name != gpu]))
            ratios[gpu].append(others / seconds if seconds else np.inf)
    found = [WaitedFor(gpu, min(each)) for gpu, each in ratios.items() if min(each) >= 1 / SHORTER]
    return found[0] if len(found) == 1 and np.isfinite(found[0].ratio) else None
