"""What happened when in a run: findings, checkpoints, evaluations, starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from megatronapp.core.findings import Finding
from megatronapp.gateway.run_history import NS, Bins, evaluation_view
from megatronapp.gateway.run_models import CheckpointMarker, EvaluationMarker, FindingMarker, Marker, StartMarker
from megatronapp.v1 import trace_pb2

MAX_MARKERS = 1_000
"""Of each kind, the newest."""
CHECKPOINT = 1 << trace_pb2.PHASE_CHECKPOINT


def markers(attempts: Sequence[trace_pb2.AttemptHistory], findings: Sequence[Finding]) -> list[Marker]:
    """Of one run, ordered by attempt and step."""
    bins = [Bins.of(attempt) for attempt in attempts]
    kinds: tuple[Sequence[Marker], ...] = (
        [_finding(finding) for finding in findings if finding.page],
        list(_starts(attempts, bins)),
        list(chain.from_iterable(map(_checkpoints, attempts, bins))),
        list(chain.from_iterable(map(_evaluations, attempts, bins))),
    )
    return [marker for kind in kinds for marker in sorted(kind, key=_order)[-MAX_MARKERS:]]


def _order(marker: Marker) -> tuple[int, int]:
    return marker.attempt, marker.step


def _finding(finding: Finding) -> FindingMarker:
    return FindingMarker(
        finding=finding.id,
        attempt=finding.opened_attempt or finding.attempt,
        step=finding.since_step if finding.since_step is not None else finding.opened_step,
        until_step=finding.resolved_step,
        unix_seconds=(finding.since_unix_ns or finding.opened_unix_ns) * NS,
        until_unix_seconds=finding.resolved_unix_ns * NS if finding.resolved_unix_ns else None,
    )


def _starts(attempts: Sequence[trace_pb2.AttemptHistory], bins: Sequence[Bins]) -> Iterator[StartMarker]:
    for before, attempt, own in zip(attempts, attempts[1:], bins[1:], strict=False):
        yield StartMarker(
            attempt=attempt.attempt,
            step=int(own.first_step[0]) if len(own) else attempt.first_step,
            unix_seconds=attempt.first_seen_unix_ns * NS,
            after_failure=not before.ended_well,
        )


def _checkpoints(attempt: trace_pb2.AttemptHistory, bins: Bins) -> Iterator[CheckpointMarker]:
    """A step tells of the checkpoint before it."""
    for index in np.flatnonzero(bins.phases & CHECKPOINT).tolist():
        yield CheckpointMarker(
            attempt=attempt.attempt, step=int(bins.first_step[index]) - 1, unix_seconds=float(bins.start[index])
        )


def _evaluations(attempt: trace_pb2.AttemptHistory, bins: Bins) -> Iterator[EvaluationMarker]:
    for evaluation in map(evaluation_view, attempt.evaluations):
        index = int(np.searchsorted(bins.last_step, evaluation.step))
        yield EvaluationMarker(
            attempt=attempt.attempt,
            step=evaluation.step,
            unix_seconds=float(bins.end[index]) if index < len(bins) else None,
            split=evaluation.split,
            loss=evaluation.loss,
        )
