"""Metrics of what was found. Gauges are read from the engines at the scrape, so a job's series end with the job."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from megatronapp.core.findings import REFUTABLE, Finding, Kind, State
from megatronapp.core.job_series import JobSeries
from megatronapp.core.logging import get_logger
from megatronapp.core.metrics import JOB_LABELS, job_labels
from megatronapp.core.trace.group_kinds import GroupKind
from megatronapp.core.trace.span_names import COLLECTIVES
from megatronapp.detector import nccl_metrics
from megatronapp.detector.disaggregated_times import slots_held, waits
from megatronapp.detector.engine import Engine, Engines
from megatronapp.detector.pipeline_times import bubble_ratio, decision_seconds, stock_peak_activations
from megatronapp.detector.signals.links import SENDS
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

Sample = tuple[str, tuple[str, ...], float]
"""Name of a gauge, its labels, its value."""
Series = dict[tuple[str, tuple[str, ...]], float]
"""Values by name and labels. Of two runs of one job, and of two findings on one rank, the worse: a
scrape with the same series twice is refused whole."""
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
LATENCY_SECONDS = (0.1, 0.3, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "job_slowdown_ratio": ("The job's step time over what it would be without what was found.", ()),
    "rank_slowdown_ratio": ("The job's step time with this slow rank over without it.", ("rank", "node")),
    "rank_effect_ratio": ("The rank's time over the expected one.", ("rank", "node", "signal")),
    "rank_evidence_log10": ("Weight of the evidence against the rank.", ("rank", "node", "signal")),
    "suspect_info": ("1 for each open finding.", ("rank", "node", "gpu_uuid", "kind", "cause", "page")),
    "link_bandwidth_bytes_per_second": ("Speed of suspected links.", ("src_node", "dst_node", "kind")),
    "progress_lag_operations": ("Operations between a communicator's first and last member.", ("group_kind",)),
    "detector_owner": ("1 for each job that this replica judges.", ("replica",)),
    "pipeline_bubble_ratio": ("Share of the pipeline's time in which its stages compute nothing.", ()),
    "pipeline_decision_seconds": ("What choosing one operation takes MegaDPP's slowest stage.", ()),
    "pipeline_peak_activations": ("Most microbatches x chunks whose activations a stage held.", ()),
    "pipeline_stock_peak_activations": ("What a stage of megatron-core's own schedule holds at most.", ()),
    "fbd_slots_held": ("Slots of a backward stage that are held when a microbatch begins: mean.", ("role", "stage")),
    "fbd_wait_seconds": ("A stage's wait for the other role in a step.", ("role", "stage", "waits_for")),
    "hang_seconds": ("Time since anything moved while the job hangs, else 0.", ()),
    **nccl_metrics.GAUGES,
}
GROUP_KINDS = frozenset(map(str, GroupKind))
OTHER = "other"
"""Kinds of groups, and operations, that have no series of their own: each label is a sender's word otherwise."""


class Exposition(Collector):
    """At most `top_ranks` ranks a job have series of their own: those of open findings, the costliest first."""

    def __init__(
        self,
        registry: CollectorRegistry,
        engines: Engines,
        top_ranks: int,
        replica: str = "",
        shown: Callable[[str], bool] = lambda _run: True,
    ) -> None:
        """shown: whether the gauges of a run tell of now, and not of the past."""
        self._engines, self._top_ranks, self._replica, self._shown = engines, top_ranks, replica, shown
        self._steps: dict[str, tuple[int, int]] = {}
        self._labels: dict[str, set[tuple[str, ...]]] = {}
        self.series = JobSeries(registry)
        """Of what is counted also for jobs without an engine."""
        self._duration = Histogram(
            "megatronapp_step_duration_seconds", "Duration of a training step.", JOB_LABELS, registry=registry,
            buckets=SECONDS,
        )  # fmt: skip
        self._wait = Histogram(
            "megatronapp_collective_wait_seconds", "Mean time in a step that members wait for the last one.",
            (*JOB_LABELS, "group_kind", "op"), registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self._lost = Counter(
            "megatronapp_job_lost_seconds_total", "Time that the job lost by what was found.", (*JOB_LABELS, "cause"),
            registry=registry,
        )  # fmt: skip
        self._detections = Counter(
            "megatronapp_detections_total", "Findings opened.", (*JOB_LABELS, "cause"), registry=registry
        )
        self._latency = Histogram(
            "megatronapp_detection_latency_seconds", "From the first slow step to the finding.", JOB_LABELS,
            registry=registry, buckets=LATENCY_SECONDS,
        )  # fmt: skip
        self.quarantined = Counter(
            "megatronapp_detector_quarantined_records_total", "Records set aside because they can't be judged.",
            JOB_LABELS, registry=registry,
        )  # fmt: skip
        self.series.hold(self.quarantined)
        self._refuted = Counter(
            "megatronapp_findings_refuted_total", "Findings that a person has called none.", ["kind"], registry=registry
        )
        for kind in sorted(REFUTABLE):
            self._refuted.labels(kind)  # from 0 on, so that the first is an increase
        self._suspended = Gauge(
            "megatronapp_detector_suspended", "1 while a job is not judged because its records cause errors.",
            JOB_LABELS, registry=registry,
        )  # fmt: skip
        self._seen: set[str] = set()
        registry.register(self)

    def suspend(self, job: str) -> None:
        """The job is not judged for a while."""
        self._suspended.labels(**job_labels(job)).set(1)

    def resume(self, job: str) -> None:
        self._suspended.remove_by_labels(job_labels(job))

    def know(self, finding: Finding) -> None:
        """The finding was counted before."""
        self._seen.add(finding.id)

    def refute(self, finding: Finding) -> None:
        """A person has called the finding none."""
        self._refuted.labels(finding.kind).inc()

    def note(self, finding: Finding) -> None:
        """Count a finding when it opens."""
        if finding.state is State.RESOLVED:
            self._seen.discard(finding.id)
        elif finding.id not in self._seen:
            self._seen.add(finding.id)
            labels = tuple(job_labels(finding.job).values())
            self._detections.labels(*labels, finding.cause).inc()
            self._latency.labels(*labels).observe(max(0.0, (finding.opened_unix_ns - finding.since_unix_ns) * 1e-9))

    def observe(self, engine: Engine | None) -> None:
        """Count the engine's newest step, once."""
        if engine is None or engine.newest is None:
            return
        newest = (engine.attempt, engine.newest.step)
        if self._steps.get(engine.run) == newest:
            return
        self._steps[engine.run] = newest
        table, labels = engine.newest, tuple(job_labels(engine.job).values())
        seconds = float(np.nanmax(table.duration))
        self._duration.labels(*labels).observe(seconds)
        for (kind, operation), wait in _waits(table).items():
            self._wait.labels(*labels, kind, operation).observe(wait)
        for finding in engine.ledger.open:
            if 1 < finding.cost_ratio < math.inf:
                self._lost.labels(*labels, finding.cause).inc(seconds * (1 - 1 / finding.cost_ratio))

    def forget(self, engine: Engine) -> None:
        """The run has ended, or goes on elsewhere: its job's series go, unless another run of it is judged."""
        self._steps.pop(engine.run, None)
        self._seen.difference_update(finding.id for finding in engine.ledger.open)
        if any(other.job == engine.job and other is not engine for other in self._engines.running.values()):
            return
        for metric in (self._duration, self._wait, self._lost, self._detections, self._latency):
            metric.remove_by_labels(job_labels(engine.job))

    def collect(self) -> Iterator[Metric]:
        series: Series = {}
        dropped = Tally[tuple[str, ...]]()
        for engine in list(self._engines.running.values()):
            if not self._shown(engine.run):
                continue
            try:
                for name, labels, value in self._gauges(engine):
                    known = series.get((name, labels), value)
                    series[name, labels] = max(known, value)
                dropped.update(_dropped(engine))
            except Exception:
                log.exception("job_not_exposed", job=engine.job, run=engine.run)
        families = {
            name: GaugeMetricFamily(f"megatronapp_{name}", text, labels=(*JOB_LABELS, *labels))
            for name, (text, labels) in GAUGES.items()
        }
        for (name, labels), value in series.items():
            families[name].add_metric(labels, value)
        yield from families.values()
        yield _counted(dropped)

    def _gauges(self, engine: Engine) -> Iterator[Sample]:
        labels = tuple(job_labels(engine.job).values())
        yield "detector_owner", (*labels, self._replica), 1
        found = engine.ledger.open
        costs = [f.cost_ratio for f in found if math.isfinite(f.cost_ratio)]
        yield "job_slowdown_ratio", labels, max([1.0, *costs])
        hangs = any(f.kind is Kind.HANG for f in found)
        yield "hang_seconds", labels, engine.progress.stalled_seconds if hangs else 0.0
        for kind, lag in _known_lags(engine.progress.lags()).items():
            yield "progress_lag_operations", (*labels, kind), lag
        yield from _of_pipeline(engine.newest, labels)
        yield from nccl_metrics.samples(engine.judge.view, labels, self._top_ranks)
        yield from self._of_findings(engine, found, labels)
        for (src, dst, kind), speed in _bandwidths(engine, found).items():
            yield "link_bandwidth_bytes_per_second", (*labels, src, dst, kind), speed

    def _of_findings(self, engine: Engine, found: list[Finding], labels: tuple[str, ...]) -> Iterator[Sample]:
        shown: set[tuple[str, ...]] = set()
        for finding in sorted(found, key=lambda f: -f.cost_ratio):
            advice = finding.kind is Kind.IMBALANCE
            for rank in ("",) if advice or not finding.ranks else tuple(map(str, finding.ranks)):
                info = (rank, finding.node, finding.gpu_uuid, str(finding.kind), str(finding.cause))
                if info in shown or len(shown) >= self._top_ranks:
                    continue
                shown.add(info)
                yield "suspect_info", (*labels, *info, str(finding.page).lower()), 1
                if rank:
                    yield from _of_rank(engine, finding, int(rank), labels)


def _of_rank(engine: Engine, finding: Finding, rank: int, labels: tuple[str, ...]) -> Iterator[Sample]:
    who = (*labels, str(rank), finding.node)
    yield "rank_slowdown_ratio", who, finding.cost_ratio
    for signal in dict.fromkeys(e.signal for e in finding.evidence):
        monitor = engine.judge.monitors.get(signal)
        yield "rank_effect_ratio", (*who, signal), finding.effect_ratio
        if monitor is not None and "transfer" not in signal and rank < len(monitor):
            yield "rank_evidence_log10", (*who, signal), float(monitor.log_evidence[rank]) / math.log(10)


def _of_pipeline(newest: StepTable | None, labels: tuple[str, ...]) -> Iterator[Sample]:
    if newest is None:
        return
    if (bubble := bubble_ratio(newest)) is not None:
        yield "pipeline_bubble_ratio", labels, bubble
    if (seconds := decision_seconds(newest)) is not None:
        yield "pipeline_decision_seconds", labels, seconds
    if newest.peak_activations and (stock := stock_peak_activations(newest)) is not None:
        yield "pipeline_peak_activations", labels, newest.peak_activations
        yield "pipeline_stock_peak_activations", labels, stock
    for (role, stage), held in slots_held(newest).items():
        yield "fbd_slots_held", (*labels, role, str(stage)), held
    for (role, stage, waits_for), seconds in waits(newest).items():
        yield "fbd_wait_seconds", (*labels, role, str(stage), waits_for), seconds


def _group_kind(sent: str) -> str:
    return sent if sent in GROUP_KINDS else OTHER


def _known_lags(lags: Mapping[str, int]) -> dict[str, int]:
    known: dict[str, int] = {}
    for sent, lag in lags.items():
        kind = _group_kind(sent)
        known[kind] = max(lag, known.get(kind, 0))
    return known


def _dropped(engine: Engine) -> dict[tuple[str, ...], int]:
    """Summaries of the engine's attempt that were not judged, by its job's labels and the reason."""
    labels, assembler = tuple(job_labels(engine.job).values()), engine.assembler
    reasons = {"late": assembler.late, "far": assembler.far, "invalid": assembler.invalid}
    return {(*labels, reason): count for reason, count in reasons.items()}


def _counted(dropped: Tally[tuple[str, ...]]) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "megatronapp_detector_dropped_summaries",
        "Summaries of the newest attempt's steps that were not judged: late, far ahead, or not understood.",
        labels=(*JOB_LABELS, "reason"),
    )
    for labels, count in sorted(dropped.items()):
        family.add_metric(labels, count)
    return family


def _waits(table: StepTable) -> dict[tuple[str, str], float]:
    """Mean over members of what each waits for the last one, by kind of communicator and operation."""
    rows = table.rows
    mine = np.flatnonzero((table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0))
    if not len(mine):
        return {}
    names = len(table.operations)
    keys, key = np.unique(rows.communicator[mine] * names + rows.operation[mine], return_inverse=True)
    shortest = np.full(len(keys), np.inf)
    np.minimum.at(shortest, key, rows.duration[mine])
    mean = np.bincount(key, rows.duration[mine] - shortest[key]) / np.bincount(key)
    found: dict[tuple[str, str], list[float]] = {}
    for code, wait in zip(keys, mean, strict=True):
        kind, operation = table.communicators[code // names].kind, table.operations[code % names]
        series = _group_kind(kind), operation if operation in COLLECTIVES else OTHER
        found.setdefault(series, []).append(float(wait))
    return {name: float(np.mean(waits)) for name, waits in found.items()}


def _bandwidths(engine: Engine, found: list[Finding]) -> dict[tuple[str, str, str], float]:
    """Bytes per second of the messages of ranks whose link is suspected."""
    view = engine.judge.view
    suspects = {rank for f in found if f.kind is Kind.SLOW_LINK for rank in f.ranks}
    speeds: dict[tuple[str, str, str], float] = {}
    if view is None or not suspects:
        return speeds
    for i, (sender, peer, direction) in enumerate(view.messages.keys()):
        places = view.rank_index(sender), view.rank_index(peer)
        if not suspects & {sender, peer} or places[0] is None or places[1] is None or not view.messages.bytes[i]:
            continue
        src, dst = (str(view.table.ranks.node[place]) for place in places)
        speed = float(view.messages.bytes[i] / max(view.messages.total[i], 1e-9))
        key = (src, dst, SENDS[direction])
        speeds[key] = min(speed, speeds.get(key, math.inf))
    return speeds
