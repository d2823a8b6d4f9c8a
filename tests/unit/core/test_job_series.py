"""Series of a job end when nothing is heard of it any more."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from megatronapp.core.job_series import JobSeries
from megatronapp.core.metrics import JOB_LABELS, job_labels


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def series_of(registry: CollectorRegistry, clock: Clock, **options: object) -> tuple[JobSeries, Counter]:
    series = JobSeries(registry, clock=clock, **options)  # type: ignore[arg-type]
    counter = Counter("seen", "", (*JOB_LABELS, "kind"), registry=registry)
    series.hold(counter)
    return series, counter


def count(series: JobSeries, counter: Counter, job: str) -> None:
    series.touch(job)
    for kind in ("a", "b"):
        counter.labels(**job_labels(job), kind=kind).inc()


def jobs_of(registry: CollectorRegistry) -> set[str]:
    text = generate_latest(registry).decode()
    return {line.split('training_job="')[1].split('"')[0] for line in text.splitlines() if "training_job=" in line}


def test_a_silent_job_is_gone_from_the_next_scrape_and_a_live_one_stays(registry: CollectorRegistry) -> None:
    clock, ended = Clock(), list[str]()
    series, counter = series_of(registry, clock, seconds=900, on_end=ended.append)
    count(series, counter, "team/silent")
    count(series, counter, "team/live")

    clock.now = 800.0
    count(series, counter, "team/live")
    clock.now = 901.0

    assert jobs_of(registry) == {"live"}
    assert ended == ["team/silent"]
    assert registry.get_sample_value("seen_total", job_labels("team/live") | {"kind": "a"}) == 2


def test_a_job_that_comes_back_counts_anew(registry: CollectorRegistry) -> None:
    clock = Clock()
    series, counter = series_of(registry, clock, seconds=900)
    count(series, counter, "team/x")
    clock.now = 1_000.0
    assert jobs_of(registry) == set()

    count(series, counter, "team/x")

    assert registry.get_sample_value("seen_total", job_labels("team/x") | {"kind": "a"}) == 1


def test_jobs_without_number_have_series_of_so_many(registry: CollectorRegistry) -> None:
    series, counter = series_of(registry, Clock(), max_jobs=3)

    for number in range(100):
        count(series, counter, "team/first")
        count(series, counter, f"team/{number}")

    assert jobs_of(registry) == {"first", "98", "99"}
