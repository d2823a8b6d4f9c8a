"""Where the time of a run went. Pure.

The wall time is cut into stretches, one after another without gap or overlap: before an attempt, its start, each bin of
its steps, what lies between them, and its tail. Each stretch is then divided among the parts, so that the parts add up
to the wall time by construction, whatever the ranks' clocks say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from megatronapp.core.findings import Finding, Kind
from megatronapp.gateway.run_history import NS, Bins, Floats, kept_steps
from megatronapp.gateway.run_models import FindingCost, Part, PartSeconds, TimeSpent
from megatronapp.v1 import trace_pb2

SLOW_KINDS = frozenset(Kind) - {Kind.HANG}


@dataclass(slots=True)
class _Sums:
    parts: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    findings: dict[str, float] = field(default_factory=dict)

    def add(self, part: Part, seconds: float) -> None:
        self.parts[part] += seconds

    def charge(self, finding: str, seconds: float) -> None:
        if seconds > 0:
            self.findings[finding] = self.findings.get(finding, 0.0) + seconds


def time_spent(
    attempts: Sequence[trace_pb2.AttemptHistory], findings: Sequence[Finding], now_unix_seconds: float
) -> TimeSpent:
    """`attempts`: of one run, ascending, with all their steps; `findings`: those of the run."""
    sums = _Sums()
    begin = attempts[0].first_seen_unix_ns * NS if attempts else now_unix_seconds
    costly = [finding for finding in findings if finding.page and not finding.refuted]
    hangs = [finding for finding in costly if finding.kind is Kind.HANG]
    slow = [finding for finding in costly if finding.kind in SLOW_KINDS and np.isfinite(finding.cost_ratio)]
    cursor, ended_well = begin, True
    for attempt, kept in zip(attempts, kept_steps(attempts), strict=True):
        opened = max(cursor, attempt.first_seen_unix_ns * NS)
        sums.add(Part.PAUSE if ended_well else Part.START, opened - cursor)
        closed = max(opened, now_unix_seconds if attempt.live else attempt.last_seen_unix_ns * NS)
        cursor = _attempt(sums, Bins.of(attempt), kept, (opened, closed), _Hangs(hangs, attempt.attempt, closed), slow)
        ended_well = attempt.ended_well
    return _view(sums, begin, cursor)


def _attempt(
    sums: _Sums, bins: Bins, kept: int | None, span: tuple[float, float], hangs: _Hangs, slow: Sequence[Finding]
) -> float:
    """Add up one attempt; returns when it ended, which is no earlier than its last step."""
    opened, closed = span
    if not len(bins):
        hangs.divide(sums, Part.START, opened, closed)
        return closed
    # Bins as stretches that follow on each other: a clock that was set back makes them empty, never negative.
    ends = np.maximum.accumulate(np.maximum(bins.end, opened))
    before = np.concatenate([[opened], ends[:-1]])
    starts = np.clip(bins.start, before, ends)
    hangs.divide(sums, Part.START, opened, float(ends[0]))
    steps = _Steps(bins, before[1:], starts[1:], ends[1:])
    steps.add(sums, kept, hangs, slow)
    hangs.divide(sums, Part.OTHER, float(ends[-1]), max(closed, float(ends[-1])))
    return max(closed, float(ends[-1]))


class _Steps:
    """All bins of an attempt but the first, which is its start."""

    def __init__(self, bins: Bins, before: Floats, starts: Floats, ends: Floats) -> None:
        self.bins, self.before, self.starts, self.ends = bins, before, starts, ends

    def add(self, sums: _Sums, kept: int | None, hangs: _Hangs, slow: Sequence[Finding]) -> None:
        whole = self.ends - self.before
        hung = hangs.within(self.before, self.ends)
        sums.add(Part.HANG, float(hung.sum()))
        hangs.charge(sums, self.before, self.ends)
        left = np.divide(whole - hung, whole, out=np.zeros_like(whole), where=whole > 0)
        in_steps = np.minimum(self.bins.duration[1:], self.ends - self.starts)
        between = whole - in_steps
        in_steps, between = in_steps * left, between * left
        redone = self.bins.first_step[1:] > kept if kept is not None else np.zeros(len(whole), bool)
        sums.add(Part.REDONE, float((in_steps + between)[redone].sum()))
        in_steps, between = np.where(redone, 0.0, in_steps), np.where(redone, 0.0, between)
        self._divide_between(sums, between)
        self._divide_steps(sums, in_steps, slow)

    def _divide_between(self, sums: _Sums, between: Floats) -> None:
        """What is reported of checkpoints and evaluations may be longer than the room: it is scaled to it."""
        checkpoint, evaluation = self.bins.checkpoint[1:], self.bins.evaluation[1:]
        reported = checkpoint + evaluation
        scale = np.minimum(1.0, np.divide(between, reported, out=np.zeros_like(reported), where=reported > 0))
        sums.add(Part.CHECKPOINT, float((checkpoint * scale).sum()))
        sums.add(Part.EVALUATION, float((evaluation * scale).sum()))
        sums.add(Part.OTHER, float((between - reported * scale).sum()))

    def _divide_steps(self, sums: _Sums, in_steps: Floats, slow: Sequence[Finding]) -> None:
        """Of several findings at a time the costliest counts: they wait for the same slowest rank."""
        cost, culprit = np.zeros(len(in_steps)), np.full(len(in_steps), -1)
        middle = (self.starts + self.ends) / 2
        for number, finding in enumerate(slow):
            until = finding.resolved_unix_ns * NS if finding.resolved_unix_ns else np.inf
            share = 1 - 1 / finding.cost_ratio if finding.cost_ratio > 1 else 0.0
            worse = (middle >= finding.since_unix_ns * NS) & (middle <= until) & (share > cost)
            cost, culprit = np.where(worse, share, cost), np.where(worse, number, culprit)
        lost = in_steps * cost
        for number, finding in enumerate(slow):
            sums.charge(finding.id, float(lost[culprit == number].sum()))
        waits = np.minimum(self.bins.stage_wait[1:], in_steps)
        bubble = np.clip(waits - lost, 0.0, in_steps - lost)
        sums.add(Part.SLOW, float(lost.sum()))
        sums.add(Part.BUBBLE, float(bubble.sum()))
        sums.add(Part.COMPUTE, float((in_steps - lost - bubble).sum()))


class _Hangs:
    """When an attempt hung: the union of its findings' times."""

    def __init__(self, findings: Sequence[Finding], attempt: int, closed: float) -> None:
        self._spans: list[tuple[float, float, str]] = []
        end = -np.inf
        mine = (finding for finding in findings if finding.attempt == attempt)
        for finding in sorted(mine, key=lambda finding: finding.since_unix_ns):
            until = finding.resolved_unix_ns * NS if finding.resolved_unix_ns else closed
            since = max(finding.since_unix_ns * NS, end)
            if until > since:
                self._spans.append((since, until, finding.id))
                end = until

    def within(self, begin: Floats, end: Floats) -> Floats:
        """Hung seconds of each stretch."""
        hung = np.zeros(len(begin))
        for since, until, _ in self._spans:
            hung += np.clip(np.minimum(end, until) - np.maximum(begin, since), 0.0, None)
        return np.minimum(hung, end - begin)

    def charge(self, sums: _Sums, begin: Floats, end: Floats) -> None:
        for since, until, finding in self._spans:
            overlap = np.clip(np.minimum(end, until) - np.maximum(begin, since), 0.0, None)
            sums.charge(finding, float(overlap.sum()))

    def divide(self, sums: _Sums, part: Part, begin: float, end: float) -> None:
        """A stretch that is all of one part, but for what of it hung."""
        stretch = np.array([begin]), np.array([end])
        hung = float(self.within(*stretch)[0])
        self.charge(sums, *stretch)
        sums.add(Part.HANG, hung)
        sums.add(part, end - begin - hung)


def _view(sums: _Sums, begin: float, end: float) -> TimeSpent:
    wall = end - begin
    costs = sorted(sums.findings.items(), key=lambda item: -item[1])
    return TimeSpent(
        from_unix_seconds=begin,
        to_unix_seconds=end,
        wall_seconds=wall,
        parts=[
            PartSeconds(part=part, seconds=seconds, share=seconds / wall if wall > 0 else 0.0)
            for part, seconds in sums.parts.items()
        ],
        findings=[FindingCost(finding=finding, seconds=seconds) for finding, seconds in costs],
    )
