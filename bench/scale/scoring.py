"""Scoring: what the detector said of a job against what was wrong with it.

A *page* is what a person would get: a finding that pages, told for the first time in its attempt. It is right when all
ranks that it names are those of a fault that is there, or was until GRACE_STEPS ago. With a fault there it else names a
*wrong culprit*, without one it is a *false page*. A right page whose kind and cause are neither the fault's nor unknown
has a *wrong cause*. An *opening* is any finding that anybody sees, but for advice (imbalance); it is false when no
fault explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.scale.faults import Fault, What
from bench.scale.job import Job, Step
from megatronapp.core.findings import Finding, Kind, State

GRACE_STEPS = 10
NS = 1e-9
DAY = 86_400.0


@dataclass(frozen=True)
class Detection:
    """How a fault was found; steps and seconds are to its first right page."""

    found: bool
    right_cause: bool = False
    steps: int = 0
    """Steps in which it was active, the one with the page too."""
    seconds: float = 0.0


@dataclass
class Outcome:
    """Of one job."""

    gpu_days: float = 0.0
    job_days: float = 0.0
    rank_steps: int = 0
    pages: int = 0
    false_pages: int = 0
    wrong_culprits: int = 0
    wrong_causes: int = 0
    false_openings: int = 0
    advice: int = 0
    errors: int = 0
    """Steps that the engine failed on."""
    detections: list[Detection] = field(default_factory=list)
    generation_seconds: float = 0.0
    engine_seconds: float = 0.0
    strays: list[str] = field(default_factory=list)
    """False pages, wrong culprits and errors, in words; the first few."""


class Score:
    """Of one job, step by step. Faults count from `counted_from` on: what was said before is not their detection."""

    def __init__(self, job: Job, counted_from: int = 0) -> None:
        self.outcome = Outcome()
        self._faults, self._world = job.spec.faults, job.layout.world
        self._counted_from = counted_from
        self._paged, self._opened = set[tuple[str, int]](), set[tuple[str, int]]()
        self._right: dict[Fault, Detection] = {}
        self._active: dict[Fault, int] = dict.fromkeys(self._faults, 0)
        self._since: dict[Fault, int] = {}

    def pass_step(self, step: Step) -> None:
        days = (int(step.ended_unix_ns.max()) - step.began_unix_ns) * NS / DAY
        self.outcome.job_days += days
        self.outcome.gpu_days += self._world * days
        self.outcome.rank_steps += self._world
        for fault in self._faults:
            if step.number >= self._counted_from and fault.size(step.number):
                self._since.setdefault(fault, step.began_unix_ns)
                self._active[fault] += 1

    def observe(self, step: int, unix_ns: int, finding: Finding) -> None:
        if finding.state is not State.OPEN:
            return
        key = (finding.id, finding.attempt)
        if key not in self._opened:
            self._opened.add(key)
            self._count_opening(step, finding)
        if finding.page and key not in self._paged:
            self._paged.add(key)
            self._count_page(step, unix_ns, finding)

    def fail(self, step: int, error: Exception) -> None:
        self.outcome.errors += 1
        if self.outcome.errors == 1:
            self.outcome.strays.append(f"step {step}: the engine failed: {error!r}")

    def close(self) -> Outcome:
        self.outcome.detections = [self._right.get(fault, Detection(found=False)) for fault in self._faults]
        return self.outcome

    def _count_opening(self, step: int, finding: Finding) -> None:
        if finding.kind is Kind.IMBALANCE:
            self.outcome.advice += 1
        elif not blamed(finding, self._present(step)):
            self.outcome.false_openings += 1

    def _count_page(self, step: int, unix_ns: int, finding: Finding) -> None:
        self.outcome.pages += 1
        present = self._present(step)
        right = blamed(finding, present)
        if not right:
            self.outcome.wrong_culprits += bool(present)
            self.outcome.false_pages += not present
            if len(self.outcome.strays) < 4:
                self.outcome.strays.append(f"step {step}: {finding.kind}/{finding.cause} {finding.summary}")
            return
        known = any(fault.explains(finding.kind, finding.cause) for fault in right)
        self.outcome.wrong_causes += not known
        for fault in right:
            if step >= self._counted_from and fault not in self._right and fault in self._since:
                seconds = (unix_ns - self._since[fault]) * NS
                self._right[fault] = Detection(True, known, self._active[fault], seconds)

    def _present(self, step: int) -> list[Fault]:
        return [fault for fault in self._faults if fault.from_step <= step <= fault.to_step + GRACE_STEPS]


def blamed(finding: Finding, present: Sequence[Fault]) -> list[Fault]:
    """The faults that a finding names; none where it names an innocent rank too. Without ranks it names the fabric."""
    if not finding.ranks:
        return [f for f in present if finding.kind is Kind.FABRIC_SLOW and f.what is What.SWITCH]
    named = set(finding.ranks)
    if not named <= frozenset[int]().union(*(fault.places for fault in present)):
        return []
    return [fault for fault in present if named & fault.places]
