"""How many jobs may be traced at once. Each run of a job counts, since each is judged and kept by itself; one that has
been silent for a while no longer does."""

from __future__ import annotations

import time
from collections.abc import Callable

from megatronapp.core.errors import UnavailableError

COUNTED_SECONDS = 900.0
"""A run counts so long after the last word of it, so that short ones one after the other count as well."""


class TooManyJobsError(UnavailableError):
    """It is worth trying again: others end."""


class JobLimit:
    def __init__(self, most: int, most_in_namespace: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_in_namespace = most_in_namespace
        self._clock = clock
        self._heard_at: dict[tuple[str, str], float] = {}
        """By job and run."""

    def heard(self, job: str, run: str) -> None:
        """A message of a run of `<namespace>/<name>` has been taken in."""
        self._heard_at[job, run] = self._clock()

    def admit(self, job: str, run: str) -> None:
        """The run wants to be traced, or still is. Raises TooManyJobsError."""
        oldest = self._clock() - COUNTED_SECONDS
        if self._heard_at.get((job, run), oldest) <= oldest:
            self._heard_at = {each: at for each, at in self._heard_at.items() if at > oldest}
            self._check_room(job.partition("/")[0])
        self.heard(job, run)

    def _check_room(self, namespace: str) -> None:
        if len(self._heard_at) >= self._most:
            raise TooManyJobsError(f"{self._most} runs of jobs are traced here, which is the most; raise max_jobs")
        neighbours = sum(job.startswith(f"{namespace}/") for job, _ in self._heard_at)
        if neighbours >= self._most_in_namespace:
            raise TooManyJobsError(
                f"{neighbours} runs of jobs of namespace {namespace} are traced here, which is the most; "
                "raise max_jobs_per_namespace"
            )
