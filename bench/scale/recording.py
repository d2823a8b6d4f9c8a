"""Recording: how the compute of a real run's ranks varied, in a small file; how it is read and written.

A .npz of three arrays, without pickled objects:

    format    the number 1
    compute   float32 (steps, ranks): log(seconds that the rank computed in the step ÷ its median over the run)
    text      one string: device, ranks, when, with which command

`python -m bench.scale.record TRACE_FOLDER FILE` makes one of a trace folder. What all ranks of a step share, and the
ranks' constant differences, are taken out: the first belongs to the run's own data, the second to two or eight devices
that tell nothing of a fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.detector.steps import Floats

FORMAT = 1
DEFAULT = Path(__file__).parent / "data" / "h200.npz"
LEAST_STEPS = 200
MOST = 4.0
"""No step takes e⁴ times as long as usual."""


@dataclass(frozen=True, eq=False)
class Recording:
    compute: Floats
    text: str

    def __post_init__(self) -> None:
        if self.compute.ndim != 2 or self.compute.shape[0] < LEAST_STEPS or not self.compute.shape[1]:
            raise DataError(f"a recording needs {LEAST_STEPS} steps of a rank or more, not {self.compute.shape}")
        if not np.isfinite(self.compute).all() or np.abs(self.compute).max() > MOST:
            raise DataError("a recording's numbers are logs of ratios: finite, and between -4 and 4")


def load(path: Path) -> Recording:
    """Raises DataError for what is no recording."""
    try:
        with np.load(path, allow_pickle=False) as file:
            number, compute, text = int(file["format"]), np.asarray(file["compute"], np.float64), str(file["text"])
    except (OSError, KeyError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is no recording; make one with `python -m bench.scale.record`: {error}") from error
    if number != FORMAT:
        raise DataError(f"{path} has format {number}; this version reads {FORMAT}: record it again")
    return Recording(compute, text)


def save(recording: Recording, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, format=np.int64(FORMAT), compute=recording.compute.astype(np.float32), text=np.str_(recording.text)
    )


def of_seconds(seconds: Floats, text: str) -> Recording:
    """seconds: (steps, ranks) of compute; nan where a rank's summary is missing. Such steps are left out."""
    whole = seconds[np.isfinite(seconds).all(axis=1) & (seconds > 0).all(axis=1)]
    if len(whole) < LEAST_STEPS:
        raise DataError(f"{len(whole)} steps that all ranks told of; a recording needs {LEAST_STEPS}")
    logs = np.log(whole)
    logs = logs - np.median(logs, axis=0)
    if logs.shape[1] > 2:
        logs = logs - np.median(logs, axis=1, keepdims=True)
    return Recording(np.clip(logs, -MOST, MOST), text)
