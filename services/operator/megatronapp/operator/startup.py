"""Why an attempt does not start, in Kubernetes' own words: an image, a Secret, a service account is missing. Pure.

A pod tells some of it itself. The rest stands in events alone: of the Job where no pod can be made, of the pod where a
volume can't be mounted. They are asked for when an attempt has not started after a while, then ever more seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from megatronapp.core.trainingjob import Reason
from megatronapp.operator.observation import Explanation, Hindrance, Observation
from megatronapp.operator.snapshots import Pod, parse_time, version_of

ASK_AFTER_SECONDS = 10
"""Most attempts have started by then; then twice as long each time."""
MAX_ASK_SECONDS = 300
QUOTA = "exceeded quota"
"""It passes by itself: such a job may wait as long as one that finds no place."""

OF_PODS = frozenset(
    {
        Reason.IMAGE_PULL_BACK_OFF,
        Reason.INVALID_IMAGE_NAME,
        Reason.ERR_IMAGE_NEVER_PULL,
        Reason.CREATE_CONTAINER_CONFIG_ERROR,
        Reason.CREATE_CONTAINER_ERROR,
    }
)
"""Why a container waits, which time alone does not mend."""
OF_EVENTS = frozenset(
    {Reason.FAILED_CREATE, Reason.FAILED_MOUNT, Reason.FAILED_ATTACH_VOLUME, Reason.FAILED_CREATE_POD_SAND_BOX}
)
REASONS = OF_PODS | OF_EVENTS


@dataclass(frozen=True)
class Subject:
    """The object whose events may tell."""

    kind: str
    name: str
    since: datetime
    """It has not started since."""


def hindrance(observation: Observation) -> Hindrance | None:
    """What keeps the newest attempt from starting."""
    for pod in sorted(observation.live, key=lambda pod: pod.name):
        if pod.waiting_reason in OF_PODS:
            where = f"{pod.name} on node {pod.node}"
            return Hindrance(Reason(pod.waiting_reason), f"{where}: {pod.waiting_message}".removesuffix(": "))
    known = observation.explanation
    return known.hindrance if known is not None and _subject(observation) == known.subject else None


def to_ask(observation: Observation) -> Subject | None:
    """Whose events to ask for now."""
    subject, known = _subject(observation), observation.explanation
    if subject is None or observation.now < _first_look(subject):
        return None
    return None if known is not None and known.subject == subject and observation.now < known.until else subject


def next_look(observation: Observation) -> datetime | None:
    """When to ask for events, as nothing else would bring the job back."""
    subject, known = _subject(observation), observation.explanation
    if subject is None:
        return None
    return known.until if known is not None and known.subject == subject else _first_look(subject)


def explanation(subject: Subject, events: Iterable[Mapping[str, Any]], now: datetime) -> Explanation:
    """From an object's events: the one written last says whether it is still held up."""
    waited = (now - subject.since).total_seconds()
    until = now + timedelta(seconds=min(MAX_ASK_SECONDS, max(ASK_AFTER_SECONDS, waited)))
    # Of an earlier object of this name there may be some, too.
    own = (event for event in events if _told_at(event) >= subject.since)
    last = max(own, key=version_of, default=None)
    if last is None or last.get("type") != "Warning" or last.get("reason") not in OF_EVENTS:
        return Explanation(subject, None, until)
    text = f"{subject.kind.lower()} {subject.name}: {last.get('message') or ''}"
    return Explanation(subject, Hindrance(Reason(last["reason"]), text, passes=QUOTA in text), until)


def gives_up_at(observation: Observation) -> datetime | None:
    """When a job that does not start has failed; None for never."""
    limit, since = observation.spec.failure_policy.startup_timeout_seconds, failing_since(observation)
    found = hindrance(observation)
    if found is None or found.passes or since is None or not limit:
        return None
    return since + timedelta(seconds=limit)


def failing_since(observation: Observation) -> datetime | None:
    """Since when something keeps the attempt from starting."""
    if hindrance(observation) is None:
        return None
    return parse_time(observation.status.startup_failing_since) or observation.now


def _told_at(event: Mapping[str, Any]) -> datetime:
    """When an event was told last; the one and the other of Kubernetes' clients fill in different fields."""
    texts = (event.get("lastTimestamp"), (event.get("series") or {}).get("lastObservedTime"), event.get("eventTime"))
    moments = map(parse_time, (*texts, event["metadata"].get("creationTimestamp")))
    return max((moment for moment in moments if moment), default=datetime.min.replace(tzinfo=UTC))


def _first_look(subject: Subject) -> datetime:
    return subject.since + timedelta(seconds=ASK_AFTER_SECONDS)


def _subject(observation: Observation) -> Subject | None:
    """The Job while it has not all of its pods, or a pod that has a node and has started no container."""
    job = observation.current
    if job is None or job.stopped or job.suspended or job.failing or job.failed or job.complete:
        return None
    for part in observation.parts:
        if sum(pod.role == part.role for pod in observation.ranks) < part.nodes:
            return Subject("Job", part.name, part.created) if part.created else None
    slow = sorted((pod for pod in observation.live if _is_starting(pod)), key=lambda pod: pod.name)
    return Subject("Pod", slow[0].name, slow[0].placed_at) if slow and slow[0].placed_at else None


def _is_starting(pod: Pod) -> bool:
    """Placed, and neither running nor waiting for a reason of its own."""
    waits = pod.waiting_reason in OF_PODS
    return pod.placed_at is not None and pod.phase == "Pending" and pod.delete_requested is None and not waits
