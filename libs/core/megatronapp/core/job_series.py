"""Series of single jobs: they end when nothing is heard of their job any more, and are of so many jobs at most.

A counter with a job's labels would stay for ever, and whoever may name jobs could have any number of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from megatronapp.core.metrics import job_labels

SERIES_SECONDS = 900.0
"""A job's series stay so long after the last word of it."""
MAX_JOBS = 2_000
"""Jobs with series of their own; of more, the one heard of longest ago loses its own."""


class JobSeries(Collector):
    """To be made before the metrics that it is given: what is old goes at the beginning of a scrape, in its thread.

    `on_end` hears of each job whose series have gone.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        seconds: float = SERIES_SECONDS,
        max_jobs: int = MAX_JOBS,
        on_end: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics: list[MetricWrapperBase] = []
        self._seconds = seconds
        self._max_jobs = max_jobs
        self._on_end = on_end
        self._clock = clock
        self._heard_at: dict[str, float] = {}
        """The one heard of longest ago first."""
        self._lock = threading.RLock()
        registry.register(self)

    def hold(self, *metrics: MetricWrapperBase) -> None:
        """These have the labels of a job, and maybe others."""
        self._metrics.extend(metrics)

    def touch(self, job: str) -> None:
        """Something was heard of the job. To be called before its series are written."""
        with self._lock:
            self._heard_at.pop(job, None)
            if len(self._heard_at) >= self._max_jobs:
                self._end(next(iter(self._heard_at)))
            self._heard_at[job] = self._clock()

    def expire(self) -> None:
        """Drop the series of jobs that are silent for long enough."""
        with self._lock:
            oldest = self._clock() - self._seconds
            for job in [job for job, heard_at in self._heard_at.items() if heard_at < oldest]:
                self._end(job)

    def collect(self) -> list[Metric]:
        self.expire()
        return []

    def _end(self, job: str) -> None:
        del self._heard_at[job]
        for metric in self._metrics:
            metric.remove_by_labels(job_labels(job))
        if self._on_end is not None:
            self._on_end(job)
