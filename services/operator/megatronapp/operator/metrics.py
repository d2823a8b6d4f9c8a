"""What the operator tells Prometheus."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from megatronapp.core.metrics import JOB_LABELS
from megatronapp.core.trainingjob import Phase, Status
from megatronapp.operator.names import Key

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciled = Histogram(
            "megatronapp_operator_reconcile_seconds", "Time to bring one job up to date.", registry=registry,
            buckets=SECONDS,
        )  # fmt: skip
        self.leader = Gauge("megatronapp_operator_leader", "1 on the operator that holds the Lease.", registry=registry)
        self.breaker = Gauge(
            "megatronapp_operator_breaker_open",
            "1 while remediation is stopped until a person looks.",
            registry=registry,
        )
        self.queued = Gauge("megatronapp_operator_queue_length", "Jobs waiting to be reconciled.", registry=registry)
        self.errors = Counter(
            "megatronapp_operator_reconcile_errors_total", "Reconciles of a job that ended in an unexpected error.",
            registry=registry,
        )  # fmt: skip
        self.unreadable = Counter(
            "megatronapp_operator_unreadable_objects_total", "Objects set aside because they can't be read, by kind.",
            ("kind",), registry=registry,
        )  # fmt: skip
        self._restarts = Counter(
            "megatronapp_job_restarts_total", "Attempts that failed.", JOB_LABELS, registry=registry
        )
        self._moves = Counter(
            "megatronapp_job_remediations_total", "Nodes that jobs were moved away from.", (*JOB_LABELS, "node"),
            registry=registry,
        )  # fmt: skip

    def note(self, key: Key, before: Status, after: Status) -> None:
        """Count what a status has gained."""
        labels = (key.name, key.namespace)
        if after.restarts > before.restarts:
            self._restarts.labels(*labels).inc(after.restarts - before.restarts)
        known = {(node.name, node.since) for node in before.excluded_nodes}
        for node in after.excluded_nodes:
            if (node.name, node.since) not in known:
                self._moves.labels(*labels, node.name).inc()

    def forget(self, key: Key) -> None:
        """The job is gone, and so are its series."""
        for counter in (self._restarts, self._moves):
            counter.remove_by_labels({"training_job": key.name, "namespace": key.namespace})


class Phases(Collector):
    """How many jobs there are in each phase, counted at the scrape."""

    def __init__(self, registry: CollectorRegistry, phases: Callable[[], list[str]]) -> None:
        self._phases = phases
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("megatronapp_jobs", "TrainingJobs by phase.", labels=["phase"])
        counted = Count(self._phases())
        for phase in Phase:
            family.add_metric([phase], counted[phase])
        yield family
