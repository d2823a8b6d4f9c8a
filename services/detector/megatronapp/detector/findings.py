"""The life of findings: open with the evidence, page when it lasts and costs, resolve when it is over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from megatronapp.core.findings import MAX_DEVICES, Evidence, Finding, Kind, State, Worker
from megatronapp.detector.attribution import OF_ONE_RANK
from megatronapp.detector.gates import MATERIAL, Gate, least_effect, log_effect, of_one_rank
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.steps import RankTable

PAGE_COST = 1.01
"""The job's step time over that without the fault: for less than a hundredth nobody is woken, but for PAGE_DEVICES."""
PAGE_DEVICES = 8
"""What costs the job as much as so many of its devices compute pages, however small a share that is: they are a usual
node, which is what would be replaced. In a job of 4,096 devices it is 0.2 %."""
REFRESH_STEPS = 10
"""An open finding is told again after so many steps, so that its evidence goes on."""
LEAD_STEPS = 16
"""Evidence shows so many steps from before the beginning."""
ONSET_STEPS = 32
"""And so many from there on, each of them however long the finding lasts: a jump must not become a ramp."""
OLDER_POINTS = 64
"""What lies between these and the newest series is thinned out evenly to so many points."""
NS = 1e-9

Key = tuple[str, tuple[int, ...]]
Number = TypeVar("Number", int, float)


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

    def __init__(
        self, run: str, job: str, attempt: int, gate: Gate | None = None, inherited: Iterable[Finding] = ()
    ) -> None:
        """gate: what has been refuted in the job. inherited: what was open when the attempt before ended."""
        self._identity = {"run": run, "job": job, "attempt": attempt}
        self._attempt = attempt
        self._gate = gate or Gate()
        self._open: dict[str, dict[Key, _Case]] = {}
        self._inherited = list(inherited)

    @property
    def open(self) -> list[Finding]:
        return [case.finding for cases in self._open.values() for case in cases.values()] + self._inherited

    def holds(self, source: str) -> bool:
        """Whether anything of this source is open."""
        return bool(self._open.get(source))

    def inherit(self, ranks: RankTable, now: Moment) -> tuple[list[Finding], list[Finding]]:
        """Who takes part is known: what was open before the attempt goes on on the ranks that its devices have now,
        the first list, for the caller to adopt. The second, whose devices are gone, ended with the old attempt."""
        waiting, self._inherited = self._inherited, []
        goes_on, ended = list[Finding](), list[Finding]()
        for finding in waiting:
            moved = self._moved(finding, ranks, now)
            if moved is not None:
                goes_on.append(moved)
            else:
                ended.append(resolved(finding, now.unix_ns, None))
        return goes_on, ended

    def refute(self, finding: Finding, now: Moment) -> Finding:
        """Resolve a finding, or one that is resolved already, since a person says that it is none."""
        newest = next((known for known in self.open if known.id == finding.id), finding)
        self.drop(newest)
        return refuted(newest, now.unix_ns, now.step)

    def update(
        self,
        source: str,
        suspicions: Sequence[Suspicion],
        ranks: RankTable | None,
        cost_of: Callable[[Suspicion], float],
        now: Moment,
    ) -> list[Finding]:
        """Take what one source suspects now and resolve what it no longer does; returns new and changed findings.

        What fades keeps its finding open, but opens and renames none: the newest steps do not show what it says. Nor
        does what would page nobody rename a page that stands: a burst may outweigh it for a moment.
        """
        cases, changed, seen = self._open.setdefault(source, {}), list[Finding](), set[Key]()
        if not cases and not suspicions:
            return changed
        for suspicion in suspicions:
            if self._gate.holds(suspicion, _devices(suspicion.ranks, ranks)):
                continue
            key = key_of(suspicion)
            seen.add(key)
            case = cases.get(key)
            if suspicion.fading and not _says_the_same(case, suspicion):
                continue
            if case is not None and _outweighs_for_a_moment(suspicion, case.finding, ranks, cost_of, now):
                continue
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
        self._inherited = [other for other in self._inherited if other.id != finding.id]

    def hand_over(self, now: Moment) -> tuple[list[Finding], list[Finding]]:
        """The attempt has ended and another one begins: the first list belongs to devices, which may take part again.
        The second is resolved: who hung hangs no more, and what was said of the whole job is for the next to say."""
        goes_on = [finding for finding in self.open if finding.kind in OF_ONE_RANK and finding.devices]
        for finding in goes_on:
            self.drop(finding)
        return goes_on, self.close(now)

    def close(self, now: Moment) -> list[Finding]:
        """Resolve everything, at no step: the attempt has ended, and nothing got better."""
        ended = [resolved(finding, now.unix_ns, None) for finding in self.open]
        self._open.clear()
        self._inherited.clear()
        return ended

    def _moved(self, finding: Finding, ranks: RankTable, now: Moment) -> Finding | None:
        """The finding on the ranks that its devices have in this attempt; None if one takes no part."""
        places = {device: index for index, device in enumerate(ranks.device.tolist())}
        if not finding.devices or not all(device in places for device in finding.devices):
            return None
        there = tuple(int(ranks.rank[places[device]]) for device in finding.devices)
        node, _, workers = _places(there, ranks)
        moved = {"ranks": there, "node": node, "workers": workers, "updated_unix_ns": now.unix_ns}
        return finding.model_copy(update=self._identity | moved)

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
            devices=_devices(suspicion.ranks, ranks),
            since_step=since,
            effect_ratio=suspicion.effect_ratio,
            cost_ratio=cost,
            confidence=suspicion.confidence,
            state=State.OPEN,
            page=(before is not None and before.page) or _pages(suspicion, _is_costly(cost, ranks), since_unix_ns, now),
            evidence=tuple(_continued(series, before, since) for series in suspicion.evidence),
            summary=_summary(suspicion, since, cost),
            advice=suspicion.advice,
            opened_unix_ns=before.opened_unix_ns if before else now.unix_ns,
            opened_step=opened_step,
            updated_unix_ns=now.unix_ns,
            since_unix_ns=since_unix_ns,
            opened_attempt=before.opened_attempt if before else self._attempt,
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
    border = since + ONSET_STEPS
    begin = [index for index, step in enumerate(known.steps) if since - LEAD_STEPS <= step < min(border, first)]
    between = [index for index, step in enumerate(known.steps) if border <= step < first]
    older = begin + _thinned(between, known.steps, border)
    update = {
        "steps": _joined(known.steps, older, evidence.steps),
        "values": _joined(known.values, older, evidence.values),
    }
    expected = _joined(known.expected, older, evidence.expected) if known.expected and evidence.expected else ()
    return evidence.model_copy(update={**update, "expected": expected})


def _joined(known: tuple[Number, ...], chosen: Sequence[int], newest: tuple[Number, ...]) -> tuple[Number, ...]:
    return tuple(known[index] for index in chosen) + newest


def _thinned(chosen: Sequence[int], steps: Sequence[int], origin: int) -> list[int]:
    """At most OLDER_POINTS of these indices, evenly over the steps: the first in each stretch of 2^n steps from the
    origin. Stretches nest, so that what is thinned again and again stays even."""
    stretch = 1
    while chosen and (steps[chosen[-1]] - origin) // stretch >= OLDER_POINTS:
        stretch *= 2
    firsts: dict[int, int] = {}
    for index in chosen:
        firsts.setdefault((steps[index] - origin) // stretch, index)
    return list(firsts.values())


def _settled(case: _Case, suspicion: Suspicion, now: Moment) -> bool:
    """Whether nothing new is to be expected of an open finding: it has paged or never will, and was told lately."""
    known = case.finding
    quiet = known.page or not suspicion.pages
    same = _says_the_same(case, suspicion) and _witnesses(suspicion.evidence) <= _witnesses(known.evidence)
    return same and quiet and now.step - case.told_step < REFRESH_STEPS


def _outweighs_for_a_moment(
    suspicion: Suspicion,
    known: Finding,
    ranks: RankTable | None,
    cost_of: Callable[[Suspicion], float],
    now: Moment,
) -> bool:
    """Whether this, which would not page by itself, outweighs what a page says of the ranks and is suspected still."""
    if not known.page or suspicion.outweighs is not known.kind:
        return False
    since = suspicion.since_step if suspicion.since_step is not None else now.step
    return not _pages(suspicion, _is_costly(cost_of(suspicion), ranks), now.unix_of(since), now)


def _witnesses(evidence: Iterable[Evidence]) -> int:
    """Stacks, and what flight recorders and NCCL's RAS say, come a moment after the verdict that they belong to."""
    return sum(one.signal in ("stack", "flight_recorder", "nccl_ras") for one in evidence)


def _says_the_same(case: _Case | None, suspicion: Suspicion) -> bool:
    known = case.finding if case else None
    return known is not None and (known.kind, known.cause) == (suspicion.kind, suspicion.cause)


def key_of(what: Suspicion | Finding) -> Key:
    """One rank has one finding on its steps at a time, whose kind may become clearer, and ranks that hang hang once,
    whose cause may; others are told apart by what they are."""
    if of_one_rank(what):
        return "", what.ranks
    return str(what.kind) if what.kind is Kind.HANG else f"{what.kind}/{what.cause}", what.ranks


def _is_costly(cost: float, ranks: RankTable | None) -> bool:
    """Whether somebody is to be woken for what costs the job so much."""
    devices = len(ranks) if ranks is not None else 0
    return cost >= PAGE_COST or (cost - 1) * devices >= PAGE_DEVICES


def _pages(suspicion: Suspicion, costly: bool, since_unix_ns: int, now: Moment) -> bool:
    if suspicion.kind is Kind.HANG:
        return suspicion.pages
    seconds = (now.unix_ns - since_unix_ns) * NS
    lasting = suspicion.slow_steps >= suspicion.page_steps and seconds >= suspicion.page_seconds
    large = log_effect(suspicion) >= least_effect(suspicion)
    return suspicion.pages and not suspicion.fading and lasting and large and costly


def _worth_telling(finding: Finding, before: Finding | None) -> bool:
    if before is None or (finding.page, finding.kind, finding.cause) != (before.page, before.kind, before.cause):
        return True
    if _witnesses(finding.evidence) > _witnesses(before.evidence):
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


def refuted(finding: Finding, unix_ns: int, step: int | None) -> Finding:
    """By a person, at this time: what is open is resolved."""
    now = max(unix_ns, finding.updated_unix_ns)
    over = resolved(finding, now, step) if finding.state is State.OPEN else finding
    return over.model_copy(update={"refuted_unix_ns": now, "updated_unix_ns": now})


def identified_as(finding: Finding, known: Finding) -> Finding:
    """The finding under the id, and since the time, by which another is known that is the same."""
    kept = ("id", "since_step", "since_unix_ns", "opened_step", "opened_unix_ns", "opened_attempt")
    return finding.model_copy(
        update={name: getattr(known, name) for name in kept} | {"page": finding.page or known.page}
    )


def _places(ranks: tuple[int, ...], table: RankTable | None) -> tuple[str, str, tuple[Worker, ...]]:
    """Node and GPU where all ranks share one, and their workers."""
    if table is None or not ranks:
        return "", "", ()
    rows = np.flatnonzero(np.isin(table.rank, ranks))
    pairs = sorted({(int(table.data[row]), int(table.stage[row])) for row in rows})
    nodes, gpus = set(table.node[rows]), set(table.gpu_uuid[rows])
    return (
        str(nodes.pop()) if len(nodes) == 1 else "",
        str(gpus.pop()) if len(gpus) == 1 else "",
        tuple(Worker(dp=dp, pp=pp) for dp, pp in pairs),
    )


def _devices(ranks: tuple[int, ...], table: RankTable | None) -> tuple[str, ...]:
    """The device of each rank; none where one is not known, or where there are too many."""
    if table is None or not 0 < len(ranks) <= MAX_DEVICES or not len(table):
        return ()
    places = np.minimum(np.searchsorted(table.rank, ranks), len(table) - 1)
    devices = tuple(table.device[places].tolist())
    return devices if all(devices) and (table.rank[places] == ranks).all() else ()


def _summary(suspicion: Suspicion, since: int | None, cost: float) -> str:
    """since: as first told; a rule that looks at the newest steps alone may say a later one."""
    summary = suspicion.summary.replace(f"since step {suspicion.since_step}", f"since step {since}")
    return f"{summary} It costs the job {(cost - 1) * 100:.0f} %." if 1.005 <= cost < math.inf else summary
