"""A recording replayed through the detector's engine, message by message: what it pages, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.corpus.case import Case
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.detector.engine import Engine

TICK_NS = 250_000_000
AFTER_NS = 60 * 10**9


@dataclass(frozen=True)
class Verdict:
    """A page, as it was told first."""

    ranks: frozenset[int]
    kind: Kind
    cause: Cause
    unix_ns: int


def judge(case: Case) -> list[Verdict]:
    pages: dict[str, Verdict] = {}
    for unix_ns, finding in _replayed(case):
        if finding.page and finding.state is State.OPEN:
            pages.setdefault(finding.id, Verdict(frozenset(finding.ranks), finding.kind, finding.cause, unix_ns))
    return list(pages.values())


def _replayed(case: Case) -> Iterator[tuple[int, Finding]]:
    attempt, now = case.attempt, 0
    engine, ticked = Engine(attempt.job, attempt.job, attempt.number), 0
    for message in attempt.messages():
        now = message.received_unix_ns
        if now - ticked >= TICK_NS:
            ticked = now
            yield from ((now, finding) for finding in engine.tick(now))
        yield from ((now, finding) for finding in engine.feed(message))
    yield from ((now, finding) for finding in engine.tick(now + AFTER_NS))
