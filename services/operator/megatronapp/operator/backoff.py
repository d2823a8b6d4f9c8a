"""When the attempt after a failed one may start: each failure in a row doubles the wait. Pure.

A job that fails at once would use up its restarts within seconds, and what ails it (a file system that comes back, a
registry) is seldom over by then. The moment is reckoned from what Kubernetes has on record of the failed Job: an
operator that is killed meanwhile finds the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from megatronapp.core.trainingjob import ConditionType
from megatronapp.operator.observation import Observation

GOOD_RUN_SECONDS = 600
"""An attempt that has run for so long was a good one: the next failure is a first one again."""
MAX_DOUBLINGS = 20
"""Of a second to more than a day, which is the longest back-off."""


def starts_at(observation: Observation) -> datetime | None:
    """When the next attempt may start; None for at once: the Job has not failed, or the user has changed the spec."""
    job = observation.current
    if job is None or job.failed_at is None or observation.edited:
        return None
    return job.failed_at + timedelta(seconds=pause_seconds(observation))


def pause_seconds(observation: Observation) -> int:
    policy = observation.spec.failure_policy
    doubled: int = policy.backoff_seconds << max(0, min(failures(observation), MAX_DOUBLINGS))
    return min(doubled, policy.max_backoff_seconds)


def failures(observation: Observation) -> int:
    """Attempts that failed one after the other before this one, none of them after a good run."""
    running = next((c for c in observation.status.conditions if c.type is ConditionType.RUNNING), None)
    if running is not None and running.status == "True":
        lasted = observation.since(running.last_transition_time)
        if lasted is not None and lasted >= timedelta(seconds=GOOD_RUN_SECONDS):
            return 0
    return observation.status.consecutive_failures
