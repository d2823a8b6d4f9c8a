"""Gates: from which effect on a device is accused, where a person has called it "not slow" before.

Whoever refutes a finding has seen its effect and takes it for normal. From then on the same kind of verdict on the same
devices in a job of that name, in any of its attempts and runs, must show an effect that is larger by as much as a
finding needs at all. Gates are not stored: refuted findings are, and each start learns from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from megatronapp.core.findings import Cause, Finding
from megatronapp.detector.attribution import OF_ONE_RANK
from megatronapp.detector.rules.base import CERTAIN_SIGMAS, Suspicion

MATERIAL = 0.1
"""Relative change of an effect or a cost that is worth telling."""

Matter = tuple[str, tuple[str, ...]]
"""What is said, and of which devices."""


class Gate:
    """Of one job."""

    def __init__(self) -> None:
        self._log_effects: dict[Matter, float] = {}

    @property
    def open(self) -> bool:
        """Whether nothing was refuted."""
        return not self._log_effects

    def shut(self, finding: Finding) -> None:
        """Let nothing of the finding's effect pass any more."""
        matter = _matter(finding, finding.devices)
        self._log_effects[matter] = max(log_effect(finding), self._log_effects.get(matter, 0.0))

    def holds(self, suspicion: Suspicion, devices: tuple[str, ...]) -> bool:
        """Whether the suspicion is what has been refuted, and hardly worse."""
        known = self._log_effects.get(_matter(suspicion, devices))
        if known is None:
            return False
        return log_effect(suspicion) - known < max(least_effect(suspicion), MATERIAL * known)


class Gates:
    """Of all jobs, by name."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def of(self, job: str) -> Gate:
        return self._gates.setdefault(job, Gate())

    def forget(self, job: str) -> None:
        """The job has no engine any more: its gate goes, unless something was refuted, which holds for its next run."""
        gate = self._gates.get(job)
        if gate is not None and gate.open:
            del self._gates[job]

    def learn(self, findings: Iterable[Finding]) -> None:
        """Shut the gates of those that were refuted."""
        for finding in findings:
            if finding.refuted:
                self.of(finding.job).shut(finding)


def log_effect(what: Suspicion | Finding) -> float:
    return math.log(what.effect_ratio) if what.effect_ratio > 0 else 0.0


def least_effect(suspicion: Suspicion) -> float:
    """log(effect_ratio) that is worth a finding, and more than chance."""
    return max(suspicion.smallest, CERTAIN_SIGMAS * suspicion.uncertainty)


def of_one_rank(what: Suspicion | Finding) -> bool:
    """Whether it is a verdict on one rank's steps, whose kind or cause may become clearer."""
    return what.kind in OF_ONE_RANK and bool(what.ranks) and what.cause is not Cause.CHECKPOINT


def _matter(what: Suspicion | Finding, devices: tuple[str, ...]) -> Matter:
    return str(what.kind) if of_one_rank(what) else f"{what.kind}/{what.cause}", devices
