"""How many jobs may be traced at once. One that has been silent for a while no longer counts."""

from __future__ import annotations

import time
from collections.abc import Callable

from megatronapp.core.errors import UnavailableError

COUNTED_SECONDS = 900.0
"""A job counts so long after the last word of it, so that short jobs one after the other count as well."""


class TooManyJobsError(UnavailableError):
    """It is worth trying again: others end."""


class JobLimit:
    def __init__(self, most: int, most_in_namespace: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_in_namespace = most_in_namespace
        self._clock = clock
        self._heard_at: dict[str, float] = {}

    def heard(self, job: str) -> None:
        """A message of `<namespace>/<name>` has been taken in."""
        self._heard_at[job] = self._clock()

    def admit(self, job: str) -> None:
        """The job wants to be traced, or still is. Raises TooManyJobsError."""
        oldest = self._clock() - COUNTED_SECONDS
        if self._heard_at.get(job, oldest) <= oldest:
            self._heard_at = {name: at for name, at in self._heard_at.items() if at > oldest}
            self._check_room(job.partition("/")[0])
        self.heard(job)

    def _check_room(self, namespace: str) -> None:
        if len(self._heard_at) >= self._most:
            raise TooManyJobsError(f"{self._most} jobs are traced here, which is the most; raise max_jobs")
        neighbours = sum(name.startswith(f"{namespace}/") for name in self._heard_at)
        if neighbours >= self._most_in_namespace:
            raise TooManyJobsError(
                f"{neighbours} jobs of namespace {namespace} are traced here, which is the most; "
                "raise max_jobs_per_namespace"
            )
