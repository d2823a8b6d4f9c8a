"""Backlog: what the bus still holds from before this start. Nothing of it is news, but for what came in between.

Judging the kept steps again gives the same findings with the same ids as long as the bus holds an attempt's beginning.
When it no longer does, the engine has to learn the job's noise anew: what was published then stands until it has. A
bus that ended with the process, as on a laptop, holds nothing: what was open waits until its run is heard of again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from megatronapp.core.findings import Finding, State
from megatronapp.core.logging import get_logger
from megatronapp.detector.engine import Engine
from megatronapp.detector.findings import identified_as, key_of, resolved

log = get_logger(__name__)


class Backlog:
    """Takes the findings of the kept steps, and in the end returns those that are new."""

    def __init__(self, published: Iterable[Finding]) -> None:
        """published: what was found before, the oldest first."""
        self._published = {finding.id: finding for finding in published}
        self._again: dict[str, Finding] = {}
        self.unheard_of: list[Finding] = []
        """Once settled: what is open of runs of which the bus holds nothing."""

    def told_of(self, run: str) -> list[Finding]:
        """What was open of a run."""
        return [finding for finding in self._published.values() if _open_of(run, finding)]

    def note(self, findings: Iterable[Finding]) -> None:
        """What an engine says of the kept steps, in its order."""
        self._again |= {finding.id: finding for finding in findings}

    def settle(self, running: Mapping[str, Engine], unix_ns: int) -> list[Finding]:
        """All kept steps have been judged: findings that were not published yet, or that have changed since they
        were. Makes the engines go on with those that stand."""
        news: list[Finding] = []
        for finding in self._again.values():
            if finding.state is State.OPEN and not _stands(finding, running):
                continue  # the next attempt has gone on with it under the id by which it was told
            news += _contained(self._compare, finding, running)
        still_open = [finding for finding in self._published.values() if finding.state is State.OPEN]
        self.unheard_of = [finding for finding in still_open if finding.run not in running]
        for finding in [finding for finding in still_open if finding.run in running]:
            news += _contained(partial(_taken_over, unix_ns=unix_ns), finding, running)
        return news

    def _compare(self, finding: Finding, running: Mapping[str, Engine]) -> list[Finding]:
        before = self._published.get(finding.id) or self._counterpart(finding)
        if before is None:
            return [finding]
        self._published.pop(before.id, None)
        return _compared(identified_as(finding, before), before, running.get(finding.run))

    def _counterpart(self, finding: Finding) -> Finding | None:
        """A published finding of another id on the same ranks at the same time: judged with less history it opened in
        another step."""
        return next(
            (before for before in self._published.values() if _alike(before, finding) and before.id not in self._again),
            None,
        )


class Awaited:
    """What is open of runs that nobody has heard of since the start. In time they may come back."""

    def __init__(self, findings: Iterable[Finding] = (), until: float = 0.0) -> None:
        """until: of the monotonic clock."""
        self._until = until
        self._findings: dict[str, list[Finding]] = {}
        for finding in findings:
            self._findings.setdefault(finding.run, []).append(finding)

    def __contains__(self, run: str) -> bool:
        return run in self._findings

    @property
    def all(self) -> list[Finding]:
        return [finding for findings in self._findings.values() for finding in findings]

    def told_of(self, run: str) -> list[Finding]:
        """What is open of a run."""
        return list(self._findings.get(run, ()))

    def forget(self, run: str) -> None:
        """The run is another detector's matter."""
        self._findings.pop(run, None)

    def drop(self, finding: Finding) -> None:
        """It is not open any more."""
        known = self._findings.get(finding.run, [])
        self._findings[finding.run] = [other for other in known if other.id != finding.id]

    def take_over(self, engine: Engine, unix_ns: int) -> list[Finding]:
        """The run is heard of: its engine goes on with what was open of its attempt; the rest is resolved."""
        news: list[Finding] = []
        for finding in self._findings.pop(engine.run, ()):
            news += _contained(partial(_taken_over, unix_ns=unix_ns), finding, {engine.run: engine})
        return news

    def give_up(self, now: float, unix_ns: int) -> list[Finding]:
        """Once it is time: what was open of runs that did not come back, resolved."""
        if now < self._until or not self._findings:
            return []
        left, self._findings = self._findings, {}
        return [resolved(finding, unix_ns, None) for findings in left.values() for finding in findings]


def _contained(
    settle: Callable[[Finding, Mapping[str, Engine]], list[Finding]], finding: Finding, running: Mapping[str, Engine]
) -> list[Finding]:
    """One job's finding that can't be settled keeps no other from it."""
    try:
        return settle(finding, running)
    except Exception:
        log.exception("finding_not_settled", job=finding.job, run=finding.run, id=finding.id)
        return []


def _open_of(run: str, finding: Finding) -> bool:
    return finding.run == run and finding.state is State.OPEN


def _stands(finding: Finding, running: Mapping[str, Engine]) -> bool:
    """Whether the run's engine has it open."""
    engine = running.get(finding.run)
    return engine is not None and any(own.id == finding.id for own in engine.ledger.open)


def _alike(before: Finding, again: Finding) -> bool:
    same_key = (before.run, before.attempt, key_of(before)) == (again.run, again.attempt, key_of(again))
    return same_key and not _ended_before(before, again) and not _ended_before(again, before)


def _ended_before(first: Finding, second: Finding) -> bool:
    """Whether one was over when the other began."""
    return first.state is State.RESOLVED and first.resolved_unix_ns < second.since_unix_ns


def _compared(again: Finding, before: Finding, engine: Engine | None) -> list[Finding]:
    """The finding if it differs from what was published, and is newer."""
    newer = again.updated_unix_ns > before.updated_unix_ns
    if again.state is State.OPEN and engine is not None:
        if before.state is State.RESOLVED and not newer:
            engine.ledger.drop(again)
        else:
            engine.take_over(before, again.updated_unix_ns)
    differs = (again.state, again.page, again.kind) != (before.state, before.page, before.kind)
    return [again] if newer and differs else []


def _taken_over(finding: Finding, running: Mapping[str, Engine], unix_ns: int) -> list[Finding]:
    """The finding resolved, unless its attempt goes on and has not been judged for long enough to tell, or a later one
    has inherited it."""
    engine = running.get(finding.run)
    if _stands(finding, running):
        return []
    goes_on = engine is not None and engine.attempt == finding.attempt and not engine.ended
    if engine is not None and goes_on and engine.take_over(finding, unix_ns):
        return []
    judged = engine.newest if engine is not None and goes_on else None
    return [resolved(finding, unix_ns, judged.step if judged else None)]
