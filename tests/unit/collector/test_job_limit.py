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
        limit.admit(job)

    with pytest.raises(TooManyJobsError, match=r"2 jobs of namespace a .* raise max_jobs_per_namespace"):
        limit.admit("a/3")

    limit.admit("a/1")
    limit.admit("ab/1")
    limit.admit("b/1")
    with pytest.raises(TooManyJobsError, match=r"4 jobs .* raise max_jobs"):
        limit.admit("c/1")


def test_a_job_that_fell_silent_makes_room() -> None:
    clock = Clock()
    limit = JobLimit(most=2, most_in_namespace=2, clock=clock)
    limit.admit("a/1")
    limit.admit("a/2")
    clock.now += COUNTED_SECONDS - 1
    limit.heard("a/1")
    clock.now += 2

    limit.admit("a/3")
    with pytest.raises(TooManyJobsError):
        limit.admit("a/2")
    limit.admit("a/1")
