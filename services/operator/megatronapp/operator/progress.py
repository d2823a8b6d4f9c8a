"""Progress and findings as they stand in a status. Pure."""

from __future__ import annotations

import math
from datetime import timedelta

from megatronapp.core.trainingjob.status import FindingsStatus, Progress
from megatronapp.operator.observation import Observation
from megatronapp.operator.remediate import KINDS
from megatronapp.operator.snapshots import FindingSummary, Report, format_time, parse_time

SIDES = {"host_cpu": "host", "compute": "device", "nic": "link", "deadlock": "program"}
"""Of a hang, by the cause of its finding."""
MAX_HANG = 160
"""Characters of a hang in a column."""


def progress_of(observation: Observation) -> Progress | None:
    """The newest progress, but not more often than the installation wants it written."""
    before, report = observation.status.progress, observation.report
    if report is None or report.attempt != observation.attempt or report.step == 0:
        return before
    fresh = _progress(report, format_time(observation.now))
    if before is None or fresh.iteration >= fresh.total > before.iteration:
        return fresh
    if fresh.model_copy(update={"last_updated": before.last_updated}) == before:
        return before
    age = observation.since(before.last_updated)
    pause = timedelta(seconds=observation.limits.progress_seconds)
    return fresh if age is None or age >= pause else before


def progress_due(observation: Observation, written: Progress | None) -> float | None:
    """Seconds until progress that was held back may be written; None when nothing was."""
    report = observation.report
    if written is None or report is None or report.attempt != observation.attempt or report.step == written.iteration:
        return None
    last = parse_time(written.last_updated)
    if last is None:
        return None
    return max(1.0, (last + timedelta(seconds=observation.limits.progress_seconds) - observation.now).total_seconds())


def findings_of(observation: Observation) -> FindingsStatus | None:
    """Who is slow now; None when nobody is. It stays as it was while nobody can be asked."""
    before, report = observation.status.findings, observation.report
    if report is None:
        return before
    blamed = [s for s in report.suspicions if s.kind in KINDS and s.page]
    if not blamed or report.attempt != observation.attempt:
        return None
    fresh = _findings(blamed, format_time(observation.now))
    same = before is not None and fresh.model_copy(update={"last_found": before.last_found}) == before
    return before if same else fresh


def _progress(report: Report, now: str) -> Progress:
    total = report.total_steps
    return Progress(
        iteration=report.step,
        total=total,
        percent=min(100, 100 * report.step // total) if total else 0,
        eta_seconds=_whole(report.eta_seconds),
        iteration_millis=_whole(report.step_seconds, 1000),
        summary=f"{report.step}/{total}" if total else str(report.step),
        last_updated=now,
    )


def _findings(blamed: list[FindingSummary], now: str) -> FindingsStatus:
    worst = max(blamed, key=lambda suspicion: suspicion.effect_ratio)
    ranks = sorted({rank for suspicion in blamed for rank in suspicion.ranks})
    shown = ",".join(map(str, ranks[:6])) + (",…" if len(ranks) > 6 else "")
    nodes = {suspicion.node for suspicion in blamed if suspicion.node}
    node = worst.node if len(nodes) != 1 else next(iter(nodes))
    hang = next((_hang(suspicion) for suspicion in blamed if suspicion.kind == "hang"), "")
    place = f"{shown} @ {node}" if node else shown
    return FindingsStatus(
        slow_ranks=ranks,
        worst_slowdown=f"{worst.effect_ratio:.1f}",
        node=node,
        summary=f"{place}: {hang}" if hang else place,
        last_found=now,
    )


def _hang(suspicion: FindingSummary) -> str:
    """Which collective, and on which side: "host: Rank 2 has not entered all_reduce 79 of dp:0-2"."""
    said = suspicion.summary.partition(". ")[2].partition(";")[0].partition(". ")[0]
    side = SIDES.get(suspicion.cause, "unknown side")
    return f"{side}: {said}"[:MAX_HANG].rstrip(".") if said else side


def _whole(value: float | None, factor: int = 1) -> int | None:
    return round(value * factor) if value is not None and math.isfinite(value) else None
