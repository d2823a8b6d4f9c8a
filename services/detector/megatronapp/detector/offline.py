"""Recorded jobs judged by the rules of the streaming detector: what differs is only where steps come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State
from megatronapp.core.trace.megascan import RankTrace
from megatronapp.core.trace.validate import check_rank_message
from megatronapp.core.wording import ranks_named
from megatronapp.detector.attribution import OF_ONE_RANK
from megatronapp.detector.engine import HANG, Engine
from megatronapp.detector.findings import Ledger, Moment
from megatronapp.detector.formats import (
    kineto_steps,
    late_findings,
    late_ranks,
    megascan,
)
from megatronapp.detector.formats.bytedance import Trace
from megatronapp.detector.formats.kineto import KinetoTrace
from megatronapp.detector.formats.layout import Layout, check, infer
from megatronapp.detector.formats.megatrace import Logs, traffic_of
from megatronapp.detector.formats.own_work import gather
from megatronapp.detector.formats.recording_tables import step_tables
from megatronapp.detector.formats.xpu_timer import Scrape
from megatronapp.detector.judge import Judge
from megatronapp.detector.profiles import GPU
from megatronapp.detector.report import Culprit, Hang, Job, Report
from megatronapp.detector.rules import hang
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.signals.frontier import Blame, Frontier, blame
from megatronapp.detector.signals.program import Calls, disagreements
from megatronapp.detector.signals.silence import Silence
from megatronapp.detector.standstill import Standstill
from megatronapp.detector.steps import StepTable
from megatronapp.detector.whatif import cost_ratio, slowdown_ratio
from megatronapp.detector.whatif.equalise import Equalised
from megatronapp.v1 import trace_pb2

NOTICED_COST = 1.001
"""A finding that woke nobody is reported only when it costs the job at least so much."""
LONG_NS = 3_600 * 10**9
"""Later than any rank could still send its part of a step."""


def recorded_job(trace: Trace) -> Report:
    """Judge a straggler-analysis table. Raises DataError."""
    equalised, recording = Equalised(trace.recording), trace.recording
    result = equalised.slowdown()

    def cost(suspicion: Suspicion, table: StepTable) -> float:
        if suspicion.kind not in OF_ONE_RANK or not suspicion.slow:
            return _summary_cost(suspicion, table)
        workers = np.argwhere(np.isin(trace.rank, suspicion.ranks)).tolist()
        return equalised.cost_ratio([(stage, replica) for stage, replica in workers], suspicion.since_step)

    findings = judge_tables(trace.meta.trial_name, step_tables(trace), result.recorded_seconds, cost)
    return Report(
        job=Job(
            name=trace.meta.trial_name,
            format="straggler analysis",
            ranks=trace.meta.world_size,
            steps=len(recording.steps),
            first_step=int(recording.steps[0]),
            last_step=int(recording.steps[-1]),
            step_seconds=float(result.recorded_seconds.mean()),
            slowdown_ratio=result.ratio,
            delay_ratio=result.delay_ratio,
            slowdown_by_step={str(s): float(r) for s, r in zip(recording.steps, result.step_ratio, strict=True)},
            slowdown_by_replica=result.by_replica.as_dict(),
            slowdown_by_stage=result.by_stage.as_dict(),
            slowdown_by_operation=result.by_operation.as_dict(),
        ),
        findings=tuple(_with_all_ranks(finding, trace.meta.ranks_per_worker) for finding in findings),
    )


class Attempt(Protocol):
    """One attempt of a recorded run: its ranks' messages, but the detail, in the order of arrival."""

    @property
    def job(self) -> str: ...

    @property
    def number(self) -> int: ...

    def messages(self) -> Iterator[trace_pb2.RankMessage]:
        """Raises DataError."""

    def standstill(self) -> Standstill | None:
        """What the attempt stood in at its end, where its messages have no heartbeats."""


def traced_job(attempts: Sequence[Attempt], source: str = "megatronapp trace") -> Report:
    """Judge our own traces, one engine an attempt. Raises DataError."""
    findings: list[Finding] = []
    tables: list[StepTable] = []
    hung: Hang | None = None
    for attempt in attempts:
        engine, now = Engine(attempt.job, attempt.job, attempt.number), 0
        updates: list[Finding] = []
        begun = len(tables)
        for message in attempt.messages():
            check_rank_message(message)
            now = message.received_unix_ns
            updates += engine.feed(message)
            tables += _new(engine, tables)
        updates += engine.tick(now + LONG_NS)
        tables += _new(engine, tables)
        if standstill := attempt.standstill():
            steps = (float(np.nanmax(table.duration)) for table in tables[begun:] if not table.phases)
            updates += engine.stand_still(standstill, steps)
        hung = _hang_of(engine)
        findings += _latest([*updates, *engine.ledger.open])
    return Report(job=_job_of_tables(attempts[-1].job, source, tables), findings=in_order(findings), hang=hung)


def _hang_of(engine: Engine) -> Hang | None:
    """What an attempt stood in at its end, where that is a finding."""
    stall = engine.progress.stall()
    return _hang(stall.blamed, frozenset()) if stall is not None and engine.ledger.holds(HANG) else None


def megascan_job(name: str, traces: Sequence[RankTrace]) -> Report:
    """Judge MegaScan's traces."""
    tables = list(megascan.step_tables(traces))
    seconds = [float(np.nanmax(table.duration)) for table in tables]
    return Report(job=_job_of_tables(name, "MegaScan", tables), findings=judge_tables(name, tables, seconds))


def kineto_job(name: str, traces: Mapping[int, KinetoTrace]) -> Report:
    """Judge traces of PyTorch's profiler, and tell where the step's time goes."""
    tables = list(kineto_steps.step_tables(traces))
    seconds = [float(np.nanmax(table.duration)) for table in tables]
    alone = kineto_steps.without_peers(traces)
    update: dict[str, object] = {
        "ranks": len(traces),
        "records": sum(trace.events for trace in traces.values()),
        "steps": len({step for trace in traces.values() for step in trace.steps}),
        "breakdown": kineto_steps.breakdown(traces),
        "without_peers": alone,
    }
    if len(alone) == len(traces):
        update |= {"slowdown_ratio": None, "slowdown_by_step": {}}
    job = _job_of_tables(name, "kineto", tables).model_copy(update=update)
    return Report(job=job, findings=judge_tables(name, tables, seconds))


def _job_of_tables(name: str, source: str, tables: list[StepTable]) -> Job:
    """What step summaries tell of a job; steps in which something else went on do not count for its speed."""
    ratios = {str(table.step): slowdown_ratio(table) for table in tables if len(table.rows) and not table.phases}
    seconds = [float(np.nanmax(table.duration)) for table in tables if str(table.step) in ratios]
    return Job(
        name=name,
        format=source,
        ranks=max((len(table.ranks) for table in tables), default=0),
        steps=len(tables),
        first_step=min((table.step for table in tables), default=None),
        last_step=max((table.step for table in tables), default=None),
        step_seconds=float(np.mean(seconds)) if seconds else None,
        slowdown_ratio=float(np.mean(list(ratios.values()))) if ratios else None,
        slowdown_by_step=ratios,
    )


def _new(engine: Engine, known: list[StepTable]) -> list[StepTable]:
    """The step that the engine has judged since the last one known."""
    newest = engine.newest
    return [newest] if newest is not None and not (known and newest is known[-1]) else []


UNCLEAR = 0.5
"""Confidence in a rank that others miss and that has told nothing of itself."""


@dataclass(frozen=True, slots=True)
class _Stall:
    """A hang as dumps show it: they tell neither the step nor for how long."""

    blamed: tuple[Blame, ...]
    seconds: float = 0.0
    step: int = 0
    phase: int = 0
    usual_seconds: float | None = None
    unheard: tuple[int, ...] = ()
    stacks: Mapping[int, trace_pb2.Stack] = field(default_factory=dict)
    ras: str = ""
    silences: Mapping[int, Silence] = field(default_factory=dict)
    ended: bool = False


class Halted(Protocol):
    """How far each rank had come when a job stood still."""

    @property
    def frontiers(self) -> Mapping[int, Frontier]: ...
    @property
    def members(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def absent(self) -> frozenset[int]:
        """Ranks that left no record."""

    @property
    def unclear(self) -> frozenset[int]:
        """Ranks of which it is not known what they wait for."""

    @property
    def hangs(self) -> bool:
        """Whether any operation is not complete."""

    @property
    def calls(self) -> Calls:
        """What each rank called that is not known to be through everywhere."""


WITHOUT_HASH = (
    "slow ranks are not judged, and only a rank that is behind all others is named: the logs have no groupHash, and "
    "which ranks share a communicator can't be told from their streams"
)


def megatrace_job(name: str, logs: Logs, layout: Layout | None = None) -> Report:
    """Name the ranks that hold the others up, and those that made them wait before. Who waits for a message of nobody
    knows whom can't be told from who has stopped: then nobody is named unless it is one alone. layout: as told; None:
    inferred. Raises DataError where what is told contradicts the logs."""
    if logs.stopped is not None:
        return _noting(_megatrace_hang(name, logs), WITHOUT_HASH)
    traffic = traffic_of(logs)
    if layout is not None:
        check(layout, max(logs.ranks), traffic)
    report = _megatrace_hang(name, logs)
    layout = layout or infer(len(logs.ranks.keys() | logs.absent), traffic)
    if layout is None:
        return _noting(report, "slow ranks are not judged: the communicators do not tell TP, PP and DP; give --config")
    matched = gather(logs)
    if not matched.operations:
        return _noting(report, "slow ranks are not judged: no operation is in the logs of all its members")
    work = late_ranks.measure(matched, layout)
    slow = late_ranks.find(work)
    findings = (*report.findings, *without_steps(name, late_findings.suspicions(slow)))
    job = report.job.model_copy(update={"parallel": late_findings.parallel(work, slow)})
    return report.model_copy(update={"job": job, "findings": in_order(findings)})


def _noting(report: Report, note: str) -> Report:
    return report.model_copy(update={"job": report.job.model_copy(update={"notes": (*report.job.notes, note)})})


def _megatrace_hang(name: str, logs: Logs) -> Report:
    if _nobody_is_clear(logs):
        job = Job(name=name, format="Megatrace", ranks=len(logs.ranks))
        nobody = list(hang.detect(_Stall(()), link_is_known=GPU.link_is_known))
        return Report(job=job, findings=in_order(without_steps(name, nobody)), hang=Hang())
    report = hung_job(name, logs, "Megatrace")
    records = sum(log.lines for log in logs.ranks.values())
    return report.model_copy(update={"job": report.job.model_copy(update={"records": records})})


def _nobody_is_clear(logs: Logs) -> bool:
    if not logs.hangs or disagreements(logs.calls) or not (logs.messages_unmatched or logs.stopped is not None):
        return False
    blamed = [each.rank for each in blame(logs.frontiers, logs.members, unclear=logs.unclear)]
    return len(blamed) > 1 or (logs.stopped is not None and not logs.stopped.issuperset(blamed))


def hung_job(name: str, dumps: Halted, source: str = "flight recorder") -> Report:
    """Name the ranks that hold the others up. A job whose operations are all complete does not hang."""
    blamed = _blamed(dumps) if dumps.hangs else []
    suspicions = list(hang.detect(_Stall(tuple(blamed)), link_is_known=GPU.link_is_known)) if dumps.hangs else []
    if suspicions and all(dumps.unclear.intersection(suspicion.ranks) for suspicion in suspicions):
        suspicions += hang.detect(_Stall(()), link_is_known=GPU.link_is_known)
    return Report(
        job=Job(name=name, format=source, ranks=len(dumps.frontiers.keys() | dumps.absent)),
        findings=in_order(_unclear(finding, dumps) for finding in without_steps(name, suspicions)),
        hang=_hang(blamed, dumps.unclear) if dumps.hangs else None,
    )


def _blamed(dumps: Halted) -> list[Blame]:
    """Whose programs differ; else who holds the others up."""
    differing = disagreements(dumps.calls)
    return differing or blame(dumps.frontiers, dumps.members, unclear=dumps.unclear)


def _hang(blamed: Sequence[Blame], unclear: frozenset[int]) -> Hang:
    """Those that are known to have stopped come first."""
    culprits = [
        Culprit(
            rank=b.rank,
            communicator=b.communicator,
            operation=b.operation,
            sequence=b.sequence,
            side="unknown" if b.rank in unclear else str(b.side),
            waiting=b.waiting,
        )
        for b in sorted(blamed, key=lambda b: (b.rank in unclear, b.rank))
    ]
    if not culprits:
        return Hang()
    first = culprits[0].model_dump(include={"communicator", "operation", "sequence", "side"})
    return Hang(ranks=tuple(sorted(culprit.rank for culprit in culprits)), culprits=tuple(culprits), **first)


def scraped_job(name: str, scrape: Scrape) -> Report:
    """Pass on what xpu_timer says of each rank: it tells that a rank hangs, not which one made it."""
    ranks = tuple(sorted(rank for rank, hangs in scrape.hung.items() if hangs))
    suspicions = []
    if ranks:
        text = f"xpu_timer reports that {ranks_named(ranks)} hang."
        suspicions.append(
            Suspicion(
                kind=Kind.HANG,
                cause=Cause.UNKNOWN,
                ranks=ranks,
                since_step=None,
                effect_ratio=1.0,
                evidence=(Evidence(signal="xpu_timer", text=text, unit="flag"),),
                summary=text,
                advice="Take flight-recorder dumps of all ranks; they tell which one the others wait for.",
                confidence=0.9,
                cost_ratio=math.inf,
            )
        )
    job = Job(name=name, format="xpu_timer", ranks=len(scrape.hung), records=scrape.samples)
    return Report(job=job, findings=in_order(without_steps(name, suspicions)))


def without_steps(name: str, suspicions: list[Suspicion]) -> list[Finding]:
    """Findings of what was seen once, at no known step."""
    now = Moment(0, 0, lambda _: 0)
    return Ledger(name, name, 1).update("hang", suspicions, None, lambda suspicion: suspicion.cost_ratio, now)


def _summary_cost(suspicion: Suspicion, table: StepTable) -> float:
    return cost_ratio(table, suspicion.slow) if suspicion.slow else suspicion.cost_ratio


def judge_tables(
    name: str,
    tables: Iterable[StepTable],
    step_seconds: Iterable[float],
    cost_of: Callable[[Suspicion, StepTable], float] = _summary_cost,
) -> tuple[Finding, ...]:
    """Judge steps that have no messages behind them; step_seconds: how long each of them took."""
    judge, ledger = Judge(), Ledger(name, name, 1)
    updates: list[Finding] = []
    now, began = 0, dict[int, int]()
    for table, seconds in zip(tables, step_seconds, strict=True):
        began[table.step], now = now, now + round(seconds * 1e9)

        def cost(suspicion: Suspicion, table: StepTable = table) -> float:
            return cost_of(suspicion, table)

        moment = Moment(table.step, now, lambda step: began.get(step, 0))
        for source, suspicions in judge.observe(table).items():
            updates += ledger.update(source, suspicions, table.ranks, cost, moment)
    return in_order(_latest([*updates, *ledger.open]))


def _latest(updates: Iterable[Finding]) -> list[Finding]:
    """The last update of each finding, less suspicions that woke nobody and have passed or cost nothing."""
    latest = {finding.id: finding for finding in updates}
    return [f for f in latest.values() if f.page or (f.state is State.OPEN and f.cost_ratio >= NOTICED_COST)]


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (not f.page, -f.cost_ratio, f.ranks)))


def _with_all_ranks(finding: Finding, ranks_per_worker: int) -> Finding:
    """A table's rank stands for the worker's ranks, which follow it."""
    ranks = tuple(rank + i for rank in finding.ranks for i in range(ranks_per_worker))
    return finding.model_copy(update={"ranks": ranks})


def _unclear(finding: Finding, dumps: Halted) -> Finding:
    """Of a rank that left no dump, or one that is cut, it is known that others miss it, not why: nobody is woken for
    it."""
    unclear = dumps.unclear.intersection(finding.ranks)
    if not unclear:
        return finding
    left = "It left no dump" if unclear & dumps.absent else "Its dump no longer holds what it is in"
    text = f"{left}: whether it has stopped or waits as others do can't be told."
    update = {"cause": Cause.UNKNOWN, "confidence": UNCLEAR, "page": False, "summary": f"{finding.summary} {text}"}
    return finding.model_copy(update=update)
