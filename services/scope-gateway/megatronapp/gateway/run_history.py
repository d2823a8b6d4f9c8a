"""The collector's history of a run → values of the REST API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.gateway.models import Evaluation
from megatronapp.gateway.run_models import AttemptHistory, Series, SeriesName
from megatronapp.v1 import trace_pb2

NS = 1e-9
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """Columns of an attempt's bins, as in trace_pb2.AttemptHistory; times in Unix seconds, durations in seconds."""

    first_step: npt.NDArray[np.int64]
    last_step: npt.NDArray[np.int64]
    start: Floats
    end: Floats
    duration: Floats
    stage_wait: Floats
    checkpoint: Floats
    evaluation: Floats
    phases: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, attempt: trace_pb2.AttemptHistory) -> Bins:
        def seconds(data: bytes, dtype: str) -> Floats:
            return np.frombuffer(data, dtype) * NS

        return cls(
            first_step=np.frombuffer(attempt.bin_first_step, "<u8").astype(np.int64),
            last_step=np.frombuffer(attempt.bin_last_step, "<u8").astype(np.int64),
            start=seconds(attempt.start_ns, "<i8"),
            end=seconds(attempt.end_ns, "<i8"),
            duration=seconds(attempt.duration_ns, "<f8"),
            stage_wait=seconds(attempt.stage_wait_ns, "<f8"),
            checkpoint=seconds(attempt.checkpoint_ns, "<f8"),
            evaluation=seconds(attempt.evaluation_ns, "<f8"),
            phases=np.frombuffer(attempt.phases, "<u4"),
        )

    def __len__(self) -> int:
        return len(self.first_step)


def attempt_histories(attempts: Sequence[trace_pb2.AttemptHistory]) -> list[AttemptHistory]:
    """Of one run, ascending."""
    kept = kept_steps(attempts)
    return [_attempt(attempt, last) for attempt, last in zip(attempts, kept, strict=True)]


def kept_steps(attempts: Sequence[trace_pb2.AttemptHistory]) -> list[int | None]:
    """Of each attempt the last step that no later one did again; None: all count."""
    kept: list[int | None] = []
    earliest: int | None = None
    for attempt in reversed(attempts):
        kept.append(None if earliest is None else earliest - 1)
        if attempt.count:
            first = int(np.frombuffer(attempt.bin_first_step, "<u8")[0])
            earliest = first if earliest is None else min(earliest, first)
    return kept[::-1]


def evaluation_view(evaluation: trace_pb2.Evaluation) -> Evaluation:
    known = evaluation.HasField("loss") and np.isfinite(evaluation.loss)
    return Evaluation(
        split=evaluation.split,
        step=evaluation.step,
        loss=evaluation.loss if known else None,
        microbatches=evaluation.microbatches,
    )


def _attempt(attempt: trace_pb2.AttemptHistory, kept: int | None) -> AttemptHistory:
    bins = Bins.of(attempt)
    thinned = bool((bins.last_step > bins.first_step).any())
    last = int(bins.last_step[-1]) if len(bins) else 0
    return AttemptHistory(
        attempt=attempt.attempt,
        started_unix_seconds=attempt.first_seen_unix_ns * NS,
        ended_unix_seconds=None if attempt.live else attempt.last_seen_unix_ns * NS,
        ended_well=attempt.ended_well,
        kept_to_step=kept if kept is not None and kept < last else None,
        first_step=bins.first_step.tolist(),
        last_step=bins.last_step.tolist(),
        unix_seconds=np.round(bins.end, 3).tolist(),
        series=[made for each in attempt.series if (made := _series(each, thinned=thinned)) is not None],
        evaluations=[evaluation_view(each) for each in attempt.evaluations],
    )


def _series(series: trace_pb2.HistorySeries, *, thinned: bool) -> Series | None:
    """None for one of which nothing is known."""
    mean, broken = np.frombuffer(series.mean, "<f8"), np.flatnonzero(np.frombuffer(series.non_finite, "<u4"))
    if series.name not in set(SeriesName) or (np.isnan(mean).all() and not len(broken)):
        return None
    return Series(
        name=SeriesName(series.name),
        mean=_numbers(mean),
        min=_numbers(np.frombuffer(series.min, "<f8")) if thinned else None,
        max=_numbers(np.frombuffer(series.max, "<f8")) if thinned else None,
        non_finite=broken.tolist(),
    )


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """With the digits that a plot can show, which is a third of the bytes."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]
