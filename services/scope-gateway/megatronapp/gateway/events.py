"""What the page is told as it happens: one topic each of jobs, steps and findings, as JSON."""

from __future__ import annotations

from collections.abc import Hashable

from megatronapp.gateway import models
from megatronapp.gateway.live import DropPolicy, Hub, Topic
from megatronapp.gateway.state import MAX_FINDINGS, MAX_JOBS

MIB = 1 << 20

JOBS = Topic("jobs", DropPolicy.LATEST_PER_KEY, max_messages=4 * MAX_JOBS, max_bytes=8 * MIB)
"""By run; of jobs that are listed, and of those that have just left the list."""
STEPS = Topic("steps", DropPolicy.OLDEST_FIRST, max_messages=256, max_bytes=MIB)
"""By run and step; `/metrics` has them all."""
FINDINGS = Topic("findings", DropPolicy.LATEST_PER_KEY, max_messages=MAX_FINDINGS, max_bytes=16 * MIB)
PAGE = (JOBS, STEPS, FINDINGS)


def publish(
    hub: Hub,
    event: models.JobEvent | models.JobGoneEvent | models.StepEvent | models.FindingEvent | models.AnnotationEvent,
) -> None:
    """Tell all pages, in bytes that are written once."""
    topic, key = _address(event)
    if hub.wanted(topic):
        hub.publish(topic, event.model_dump_json().encode(), key)


def _address(
    event: models.JobEvent | models.JobGoneEvent | models.StepEvent | models.FindingEvent | models.AnnotationEvent,
) -> tuple[Topic, Hashable]:
    match event:
        case models.JobEvent():
            return JOBS, event.job.run
        case models.JobGoneEvent():
            return JOBS, event.run
        case models.StepEvent():
            return STEPS, (event.run, event.row.step)
        case models.FindingEvent():
            return FINDINGS, event.finding.id
        case models.AnnotationEvent():
            return FINDINGS, ("annotation", event.annotation.id)
