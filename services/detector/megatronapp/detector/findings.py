"""The life of findings: open with the evidence, page when it lasts and costs, resolve when it is over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State, Worker
from megatronapp.detector.attribution import OF_ONE_RANK
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.steps import RankTable

PAGE_COST = 1.01
PAGE_SIGMAS = 3.0
"""An effect must be so many standard deviations of its own estimate."""
REFRESH_STEPS = 10
"""An open finding is told again after so many steps, so that its evidence goes on."""
LEAD_STEPS = 16
"""Evidence shows so many steps from before the beginning."""
OLDER_POINTS = 64
"""What is older than the newest series is thinned out to so many points."""
MATERIAL = 0.1
"""Relative change of the effect or the cost that is worth telling at once."""
NS = 1e-9

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Moment:
    """When something is judged. unix_of tells the arrival of a step's first message."""

    step: int
    unix_ns: int
    unix_of: Callable[[int], int]


@dataclass(slots=True)
class _Case:
    finding: Finding
    told_step: int
    held_updates: int = 0
    """For so many updates that say nothing of it, it stands all the same."""
    held_until_unix_ns: int = 0
    """And until then."""

    def stands(self, unix_ns: int) -> bool:
        """Whether it outlives an update that says nothing of it."""
        self.held_updates -= 1
        return self.held_updates >= 0 or unix_ns < self.held_until_unix_ns


class Ledger:
    """All findings of one attempt. Deterministic: ids depend on what was found and when, not on chance."""

    def __init__(self, run: str, job: str, attempt: int) -> None:
        self._identity = {"run": run, "job": job, "attempt": attempt}
        self._open: dict[str, dict[Key, _Case]] = {}

    @property
    def open(self) -> list[Finding]:
        return [case.finding for cases in self._open.values() for case in cases.values()]

    def update(
        self,
        source: str,
        suspicions: Sequence[Suspicion],
        ranks: RankTable | None,
        cost_of: Callable[[Suspicion], float],
        now: Moment,
    ) -> list[Finding]:
        """Take what one source suspects now and resolve what it no longer does; returns new and changed findings."""
        cases, changed, seen = self._open.setdefault(source, {}), list[Finding](), set[Key]()
        if not cases and not suspicions:
            return changed
        for suspicion in suspicions:
            key = key_of(suspicion)
            seen.add(key)
            case = cases.get(key)
            if case is not None:
                case.held_updates = case.held_until_unix_ns = 0
            if case is not None and _settled(case, suspicion, now):
                continue
            before = case.finding if case else None
            finding = self._describe(suspicion, before, ranks, cost_of, now)
            if case is None:
                cases[key] = _Case(finding, now.step)
                changed.append(finding)
                continue
            case.finding = finding
            if _worth_telling(case.finding, before) or now.step - case.told_step >= REFRESH_STEPS:
                case.told_step = now.step
                changed.append(finding)
        over = [key for key in cases if key not in seen and not cases[key].stands(now.unix_ns)]
        return changed + [resolved(cases.pop(key).finding, now.unix_ns, now.step) for key in over]

    def adopt(self, source: str, finding: Finding, held_updates: int, held_until_unix_ns: int) -> None:
        """Go on with a finding that was told before this ledger began: what is open on the same ranks is that one."""
        cases, key = self._open.setdefault(source, {}), key_of(finding)
        if key in cases:
            cases[key].finding = identified_as(cases[key].finding, finding)
        else:
            cases[key] = _Case(finding, 0, held_updates, held_until_unix_ns)

    def drop(self, finding: Finding) -> None:
        """Forget an open finding without a word."""
        for cases in self._open.values():
            cases.pop(key_of(finding), None)

    def close(self, now: Moment) -> list[Finding]:
        """Resolve everything, at no step: the attempt has ended, and nothing got better."""
        ended = [resolved(finding, now.unix_ns, None) for finding in self.open]
        self._open.clear()
        return ended

    def _describe(
        self,
        suspicion: Suspicion,
        before: Finding | None,
        ranks: RankTable | None,
        cost_of: Callable[[Suspicion], float],
        now: Moment,
    ) -> Finding:
        since = before.since_step if before else suspicion.since_step
        cost = cost_of(suspicion)
        node, gpu, workers = _places(suspicion.ranks, ranks)
        opened_step = before.opened_step if before else now.step
        since_unix_ns = before.since_unix_ns if before else now.unix_of(since if since is not None else now.step)
        return Finding(
            **self._identity,
            id=before.id if before else self._id(suspicion, now.step),
            kind=suspicion.kind,
            cause=suspicion.cause,
            ranks=suspicion.ranks,
            workers=workers,
            node=node,
            gpu_uuid=gpu,
            since_step=since,
            effect_ratio=suspicion.effect_ratio,
            cost_ratio=cost,
            confidence=suspicion.confidence,
            state=State.OPEN,
            page=(before is not None and before.page) or _pages(suspicion, cost, since_unix_ns, now),
            evidence=tuple(_continued(series, before, since) for series in suspicion.evidence),
            summary=_summary(suspicion, since, cost),
            advice=suspicion.advice,
            opened_unix_ns=before.opened_unix_ns if before else now.unix_ns,
            opened_step=opened_step,
            updated_unix_ns=now.unix_ns,
            since_unix_ns=since_unix_ns,
        )

    def _id(self, suspicion: Suspicion, step: int) -> str:
        parts = (*self._identity.values(), *key_of(suspicion), step)
        return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def _continued(evidence: Evidence, before: Finding | None, since: int | None) -> Evidence:
    """The newest series, led by what was told before of the steps since the beginning, where one looks first."""
    known = next((one for one in before.evidence if one.signal == evidence.signal), None) if before else None
    if known is None or since is None or not evidence.steps:
        return evidence
    first = evidence.steps[0]
    older = [index for index, step in enumerate(known.steps) if since - LEAD_STEPS <= step < first]
    if len(older) > OLDER_POINTS:
        older = older[::2]
    update = {
        name: tuple(getattr(known, name)[index] for index in older) + getattr(evidence, name)
        for name in ("steps", "values", "expected")
    }
    return evidence.model_copy(update=update)


def _settled(case: _Case, suspicion: Suspicion, now: Moment) -> bool:
    """Whether nothing new is to be expected of an open finding: it has paged or never will, and was told lately."""
    known = case.finding
    same = (known.kind, known.cause) == (suspicion.kind, suspicion.cause)
    return same and (known.page or not suspicion.pages) and now.step - case.told_step < REFRESH_STEPS


def key_of(what: Suspicion | Finding) -> Key:
    """One rank has one finding on its steps at a time, whose kind may become clearer; others are told apart by what
    they are."""
    one_rank = what.kind in OF_ONE_RANK and what.ranks and what.cause is not Cause.CHECKPOINT
    return ("" if one_rank else f"{what.kind}/{what.cause}", what.ranks)


def _pages(suspicion: Suspicion, cost: float, since_unix_ns: int, now: Moment) -> bool:
    if suspicion.kind is Kind.HANG:
        return True
    effect = math.log(suspicion.effect_ratio) if suspicion.effect_ratio > 0 else 0.0
    seconds = (now.unix_ns - since_unix_ns) * NS
    lasting = suspicion.slow_steps >= suspicion.page_steps and seconds >= suspicion.page_seconds
    large = effect >= max(suspicion.smallest, PAGE_SIGMAS * suspicion.uncertainty)
    return suspicion.pages and not suspicion.fading and lasting and large and cost >= PAGE_COST


def _worth_telling(finding: Finding, before: Finding | None) -> bool:
    if before is None or (finding.page, finding.kind, finding.cause) != (before.page, before.kind, before.cause):
        return True
    return any(
        abs(new - old) > MATERIAL * max(abs(old - 1), 0.01)
        for new, old in ((finding.effect_ratio, before.effect_ratio), (finding.cost_ratio, before.cost_ratio))
        if math.isfinite(new) and math.isfinite(old)
    )


def resolved(finding: Finding, unix_ns: int, step: int | None) -> Finding:
    return finding.model_copy(
        update={
            "state": State.RESOLVED,
            "resolved_unix_ns": unix_ns,
            "resolved_step": step,
            "updated_unix_ns": unix_ns,
        }
    )


def identified_as(finding: Finding, known: Finding) -> Finding:
    """The finding under the id, and since the time, by which another is known that is the same."""
    kept = ("id", "since_step", "since_unix_ns", "opened_step", "opened_unix_ns")
    return finding.model_copy(
        update={name: getattr(known, name) for name in kept} | {"page": finding.page or known.page}
    )


def _places(ranks: tuple[int, ...], table: RankTable | None) -> tuple[str, str, tuple[Worker, ...]]:
    """Node and GPU where all ranks share one, and their workers."""
    if table is None or not ranks:
        return "", "", ()
    rows = np.flatnonzero(np.isin(table.rank, ranks))
    pairs = sorted({(int(table.data[row]), int(table.pipeline[row])) for row in rows})
    nodes, gpus = set(table.node[rows]), set(table.gpu_uuid[rows])
    return (
        str(nodes.pop()) if len(nodes) == 1 else "",
        str(gpus.pop()) if len(gpus) == 1 else "",
        tuple(Worker(dp=dp, pp=pp) for dp, pp in pairs),
    )


def _summary(suspicion: Suspicion, since: int | None, cost: float) -> str:
    """since: as first told; a rule that looks at the newest steps alone may say a later one."""
    summary = suspicion.summary.replace(f"since step {suspicion.since_step}", f"since step {since}")
    return f"{summary} It costs the job {(cost - 1) * 100:.0f} %." if 1.005 <= cost < math.inf else summary
