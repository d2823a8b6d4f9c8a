"""What Prometheus sees of the collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from megatronapp.collector.clocks import Clocks
from megatronapp.core.job_series import JobSeries
from megatronapp.core.metrics import JOB_LABELS, job_labels

_LAG_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


MESSAGE_KINDS = ("hello", "batch", "summary", "heartbeat")


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """The counters of one job, found once instead of for each message."""

    events: Counter
    batches: Counter
    dropped: Counter
    operations_lost: Counter
    duplicates: Counter
    messages: dict[str, Counter]
    """By kind."""
    lag: Histogram


class CollectorMetrics:
    """Series of a job end with it (core.job_series)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs: dict[str, JobMetrics] = {}
        self._streams: dict[str, int] = {}
        """Open ones, by job."""
        self.series = JobSeries(registry, on_end=lambda job: self._jobs.pop(job, None))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"megatronapp_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"megatronapp_{name}", text, labels, registry=registry)

        self.events = counter("trace_events_received", "Spans accepted", *JOB_LABELS)
        self.dropped = counter("trace_events_dropped", "Spans lost, by reason", *JOB_LABELS, "reason")
        self.operations_lost = counter("trace_operations_lost", "Operations of NCCL without a record", *JOB_LABELS)
        self.batches = counter("trace_batches", "Batches of spans accepted", *JOB_LABELS)
        self.messages = counter("trace_messages", "Messages journalled, by kind", *JOB_LABELS, "kind")
        self.duplicates = counter("trace_duplicates", "Messages that had arrived before", *JOB_LABELS)
        self.refused = counter("trace_refused", "Streams ended by the collector, by reason", "reason")
        self.quarantined = counter("trace_quarantined_records", "Records that could not be processed", *JOB_LABELS)
        self.lag = Histogram(
            "megatronapp_trace_ingest_lag_seconds",
            "From arrival to the journal",
            JOB_LABELS,
            registry=registry,
            buckets=_LAG_BUCKETS,
        )
        self.ranks = gauge("trace_ranks_connected", "Ranks with an open stream", *JOB_LABELS)
        self.clock_residual = gauge(
            "clock_residual_seconds",
            "Disagreement of clocks on collectives left out of the fit; scope: used, raw",
            *JOB_LABELS,
            "scope",
            "quantile",
        )
        self.clock_offset = gauge("clock_offset_seconds", "Fitted correction of a node's clock", *JOB_LABELS, "node")
        self.journal_bytes = gauge("trace_journal_bytes", "Size of the journal")
        self.store_bytes = gauge("trace_store_bytes", "Size of the store")
        self.expired = counter("trace_expired_bytes", "Traces deleted from the store; reason: age, size", "reason")
        self.count_expired(0, 0)
        self.writable = gauge("trace_disk_writable", "1: journal and store take data; 0: the disk is full or broken")
        self.bus_backlog = gauge("trace_bus_backlog_messages", "Messages that wait for the bus")
        self.writable.set(1)
        self.series.hold(self.events, self.dropped, self.batches, self.messages, self.duplicates)
        self.series.hold(
            self.operations_lost, self.quarantined, self.lag, self.ranks, self.clock_residual, self.clock_offset
        )

    def of(self, job: str) -> JobMetrics:
        """The counters of `<namespace>/<name>`, of which something was heard."""
        self.series.touch(job)
        if job not in self._jobs:
            labels = job_labels(job)
            self._jobs[job] = JobMetrics(
                events=self.events.labels(**labels),
                batches=self.batches.labels(**labels),
                dropped=self.dropped.labels(**labels, reason="rank_buffer_full"),
                operations_lost=self.operations_lost.labels(**labels),
                duplicates=self.duplicates.labels(**labels),
                messages={kind: self.messages.labels(**labels, kind=kind) for kind in MESSAGE_KINDS},
                lag=self.lag.labels(**labels),
            )
        return self._jobs[job]

    def connected(self, job: str, change: int) -> None:
        """So many more streams of the job are open."""
        self.series.touch(job)
        self._streams[job] = self._streams.get(job, 0) + change
        self.ranks.labels(**job_labels(job)).set(self._streams[job])
        if not self._streams[job]:
            del self._streams[job]

    def count_expired(self, age_bytes: int, size_bytes: int) -> None:
        """Traces that were deleted: too old, and younger ones for the store's size. Both begin with 0, so that the
        first of them is an increase."""
        self.expired.labels(reason="age").inc(age_bytes)
        self.expired.labels(reason="size").inc(size_bytes)

    def show_clocks(self, job: str, clocks: Clocks) -> None:
        """What is known of a job's clocks, as soon as anything is."""
        residuals = clocks.alignment.residuals()
        if residuals is None:
            return
        labels = job_labels(job)
        used = residuals.in_use(fitted=clocks.alignment.fitted)
        for scope, values in (("used", used), ("raw", (residuals.raw_median_ns, residuals.raw_p90_ns))):
            for quantile, value in zip(("0.5", "0.9"), values, strict=True):
                self.clock_residual.labels(**labels, scope=scope, quantile=quantile).set(value / 1e9)
        for node, seconds in clocks.nodes().items():
            self.clock_offset.labels(**labels, node=node).set(seconds)

    @staticmethod
    def watch(gauge: Gauge, value: Callable[[], float]) -> None:
        gauge.set_function(value)
