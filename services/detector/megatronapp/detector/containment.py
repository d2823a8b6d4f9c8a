"""Containment: what one job's records make fail concerns that job alone.

A record that an engine fails on is set aside (core.quarantine). An engine that fails again and again is of no use: its
run is left out for a while, or until its next attempt, whose engine begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

FAILURES = 3
"""So many within SUSPENDED_SECONDS suspend a run."""
SUSPENDED_SECONDS = 600.0


@dataclass(slots=True)
class Trouble:
    """What an attempt's engine has failed on lately. Times are of the monotonic clock."""

    job: str
    attempt: int
    failures: int
    failed_at: float

    @property
    def suspended(self) -> bool:
        return self.failures >= FAILURES


class Suspensions:
    """Runs whose engines have failed lately."""

    def __init__(self) -> None:
        self.troubles: dict[str, Trouble] = {}
        """By run. Mostly there are none, which costs who looks first next to nothing."""

    def failed(self, run: str, job: str, attempt: int, now: float) -> bool:
        """Note a failure; True when it is the one that suspends the run."""
        known = self.troubles.get(run)
        if known is None or known.attempt != attempt:
            known = self.troubles[run] = Trouble(job, attempt, 0, now)
        before, known.failed_at = known.suspended, now
        known.failures += 1
        return known.suspended and not before

    def covers(self, run: str, job: str, attempt: int) -> bool:
        """Whether a message is to be left out. A newer attempt of the same job is not."""
        known = self.troubles.get(run)
        return known is not None and known.suspended and (attempt <= known.attempt or job != known.job)

    def expire(self, now: float) -> list[Trouble]:
        """Forget failures of long ago; returns the suspensions that are over."""
        old = [run for run, known in self.troubles.items() if now - known.failed_at >= SUSPENDED_SECONDS]
        return [known for known in map(self.troubles.pop, old) if known.suspended]

    def end(self, run: str) -> Trouble | None:
        """The run's suspension is over, if it has one: its next attempt has begun."""
        known = self.troubles.get(run)
        return self.troubles.pop(run) if known is not None and known.suspended else None
