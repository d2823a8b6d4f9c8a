from __future__ import annotations

import pytest

from megatronapp.collector.job_limit import COUNTED_SECONDS, JobLimit, TooManyJobsError


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now


def test_a_namespace_that_is_full_takes_no_room_from_others() -> None:
    limit = JobLimit(most=4, most_in_namespace=2)
    for job in ("a/1", "a/2"):
        limit.admit(job, "r")

    with pytest.raises(TooManyJobsError, match=r"2 runs of jobs of namespace a .* raise max_jobs_per_namespace"):
        limit.admit("a/3", "r")

    limit.admit("a/1", "r")
    limit.admit("ab/1", "r")
    limit.admit("b/1", "r")
    with pytest.raises(TooManyJobsError, match=r"4 runs of jobs .* raise max_jobs"):
        limit.admit("c/1", "r")


def test_a_job_that_fell_silent_makes_room() -> None:
    clock = Clock()
    limit = JobLimit(most=2, most_in_namespace=2, clock=clock)
    limit.admit("a/1", "r")
    limit.admit("a/2", "r")
    clock.now += COUNTED_SECONDS - 1
    limit.heard("a/1", "r")
    clock.now += 2

    limit.admit("a/3", "r")
    with pytest.raises(TooManyJobsError):
        limit.admit("a/2", "r")
    limit.admit("a/1", "r")


def test_each_run_of_a_job_counts() -> None:
    limit = JobLimit(most=9, most_in_namespace=2)
    limit.admit("a/1", "first")
    limit.admit("a/1", "second")

    with pytest.raises(TooManyJobsError):
        limit.admit("a/1", "third")

    limit.admit("a/1", "first")
