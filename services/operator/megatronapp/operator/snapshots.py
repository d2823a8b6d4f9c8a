"""What is there: children, pods, nodes and reports of a TrainingJob, as small values.

Made from the API's objects once, when they arrive: the cache keeps these values, not the objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from megatronapp.core.trainingjob.reserved import TRAINER_CONTAINER
from megatronapp.operator import names

Body = Mapping[str, Any]

MAX_TERMINATION_MESSAGE_CHARACTERS = 300
"""Characters kept of a pod's last line."""


OWNERS = frozenset({"TrainingJob", "JobSet"})
"""Kinds whose Jobs are a TrainingJob's attempts; others may bear the same labels."""


def parse_time(text: str | None) -> datetime | None:
    """None also for what is no time: somebody else wrote it. Without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text or "")
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class ChildJob:
    """The Job of one attempt."""

    name: str
    namespace: str
    run: str
    attempt: int
    nodes: int
    version: int
    """Grows with every change (resourceVersion)."""
    digest: str = ""
    stopped: str = ""
    """Why it was told to stop; "" when it was not."""
    suspended: bool = False
    held: bool = False
    """Made suspended, for the user who wanted it so, not for a queue."""
    complete: bool = False
    failing: bool = False
    """A pod has failed, and the others are being ended."""
    failed: bool = False
    reason: str = ""
    message: str = ""
    created: datetime | None = None
    failed_at: datetime | None = None
    role: str = ""
    """Of its ranks, where the attempt has a Job for each role."""

    @classmethod
    def of(cls, body: Body) -> ChildJob | None:
        """None for a Job that is no attempt of a TrainingJob's. Raises ValueError where its attempt can't be read."""
        meta, spec = body["metadata"], body["spec"]
        if _controller(meta).get("kind") not in OWNERS:
            return None
        conditions = _true_conditions(body)
        failure = conditions.get("Failed") or conditions.get("FailureTarget") or {}
        annotations = meta.get("annotations") or {}
        return cls(
            name=meta["name"],
            namespace=meta["namespace"],
            run=_labels(meta).get(names.RUN_LABEL, ""),
            attempt=_attempt(meta),
            nodes=int(spec.get("completions") or 0),
            version=version_of(body),
            digest=annotations.get(names.DIGEST, ""),
            stopped=annotations.get(names.STOPPED, ""),
            suspended=bool(spec.get("suspend")),
            held=names.HELD in annotations,
            complete="Complete" in conditions,
            failing="FailureTarget" in conditions,
            failed="Failed" in conditions,
            reason=failure.get("reason", ""),
            message=failure.get("message", ""),
            created=parse_time(meta.get("creationTimestamp")),
            failed_at=parse_time(failure.get("lastTransitionTime")),
            role=_labels(meta).get(names.ROLE_LABEL, ""),
        )

    @property
    def ending(self) -> bool:
        """It has ended, or its pods are being ended."""
        return bool(self.stopped) or self.failing or self.failed or self.complete


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    run: str
    attempt: int
    node: str = ""
    phase: str = "Pending"
    ready: bool = False
    unschedulable: str = ""
    """The scheduler's message; "" for a pod that has a node or was not looked at yet."""
    pending_since: datetime | None = None
    delete_requested: datetime | None = None
    exit_code: int | None = None
    termination_message: str = ""
    """The last line of what it said before it failed."""
    disrupted: str = ""
    """Why Kubernetes itself ended the pod: eviction, preemption, a lost node."""
    interrupted: bool = False
    """It ended with 0 because it was told to end, not because its work was done."""
    placed_at: datetime | None = None
    waiting_reason: str = ""
    """Why its container does not start, as far as the pod says so."""
    waiting_message: str = ""
    role: str = ""

    @classmethod
    def of(cls, body: Body) -> Pod:
        meta, status = body["metadata"], body.get("status") or {}
        conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
        scheduled, disrupted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
        terminated = _terminated(status)
        waiting = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
        waiting_reason, waiting_message = _waiting(status)
        return cls(
            name=meta["name"],
            run=_labels(meta).get(names.RUN_LABEL, ""),
            attempt=_attempt_or_none(meta) or 0,
            node=str((body.get("spec") or {}).get("nodeName", "")),
            phase=status.get("phase", "Pending"),
            ready=conditions.get("Ready", {}).get("status") == "True",
            unschedulable=scheduled.get("message", "unschedulable") if waiting else "",
            pending_since=parse_time(scheduled.get("lastTransitionTime")) if waiting else None,
            delete_requested=_delete_requested(meta),
            exit_code=terminated.get("exitCode"),
            termination_message=_last_line(terminated.get("message", "")),
            disrupted=disrupted.get("reason", "") if disrupted.get("status") == "True" else "",
            interrupted=_is_interrupted(meta, status),
            placed_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
            waiting_reason=waiting_reason,
            waiting_message=waiting_message,
            role=_labels(meta).get(names.ROLE_LABEL, ""),
        )

    @property
    def ended(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class SlowMark:
    """The operator's own mark on a node: slow since, left alone until, for which job."""

    since: datetime
    until: datetime
    job: str

    @classmethod
    def parse(cls, text: str) -> SlowMark | None:
        """None for what the operator did not write."""
        try:
            found = json.loads(text)
            since, until = parse_time(found["since"]), parse_time(found["until"])
            return cls(since, until, str(found["job"])) if since and until else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def text(self) -> str:
        return json.dumps({"since": format_time(self.since), "until": format_time(self.until), "job": self.job})


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    ready: bool = True
    taints: tuple[tuple[str, str], ...] = ()
    """Key and effect of each."""
    mark: SlowMark | None = None

    @classmethod
    def of(cls, body: Body) -> Node:
        meta, conditions = body["metadata"], _true_conditions(body)
        taints = (body.get("spec") or {}).get("taints") or ()
        return cls(
            name=meta["name"],
            ready="Ready" in conditions,
            taints=tuple((taint["key"], taint["effect"]) for taint in taints),
            mark=SlowMark.parse((meta.get("annotations") or {}).get(f"{names.DOMAIN}/slow-gpu", "")),
        )


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """An open finding, as far as the operator needs it."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    node: str
    effect_ratio: float
    confidence: float
    page: bool
    steps_open: int
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What the platform says of a run."""

    attempt: int
    step: int = 0
    total_steps: int = 0
    step_seconds: float | None = None
    eta_seconds: float | None = None
    suspicions: tuple[FindingSummary, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that can't be made sense of, at one version: set aside, so that it is in nobody's way."""

    kind: str
    """In the plural, as `kubectl get` takes it."""
    namespace: str
    name: str
    version: int
    error: str

    @classmethod
    def of(cls, kind: str, body: Body, error: Exception) -> Unreadable:
        meta = body["metadata"]
        text = f"{type(error).__name__}: {error}"[:MAX_TERMINATION_MESSAGE_CHARACTERS]
        return cls(kind, meta.get("namespace", ""), meta.get("name", ""), version_of(body), text)

    @property
    def text(self) -> str:
        return f"{self.kind}/{self.name} can't be read ({self.error}); correct or delete it"


def owner_uid(meta: Mapping[str, Any]) -> str:
    return str(_controller(meta).get("uid", ""))


def _controller(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((owner for owner in meta.get("ownerReferences") or () if owner.get("controller")), {})


def _labels(meta: Mapping[str, Any]) -> Mapping[str, str]:
    return meta.get("labels") or {}


def _attempt(meta: Mapping[str, Any]) -> int:
    found = _attempt_or_none(meta)
    if found is None:
        given = _labels(meta).get(names.ATTEMPT_LABEL)
        raise ValueError(f"label {names.ATTEMPT_LABEL} is {given or 'missing'}, not the number of an attempt")
    return found


def _attempt_or_none(meta: Mapping[str, Any]) -> int | None:
    text = _labels(meta).get(names.ATTEMPT_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else None


def version_of(body: Body) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)


def is_stuck(pod: Pod, nodes: Mapping[str, Node], patience_seconds: int, now: datetime) -> bool:
    """Terminating on a node that is lost, for longer than patience lasts: nobody will tell how it ended."""
    if pod.ended or pod.delete_requested is None:
        return False
    node = nodes.get(pod.node)
    lost = node is None or not node.ready
    return lost and now >= pod.delete_requested + timedelta(seconds=patience_seconds)


def _delete_requested(meta: Mapping[str, Any]) -> datetime | None:
    """The deletion's time stamp lies a grace period after the request."""
    moment = parse_time(meta.get("deletionTimestamp"))
    return moment - timedelta(seconds=int(meta.get("deletionGracePeriodSeconds") or 0)) if moment else None


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the first container that has ended did so."""
    containers: Iterable[Mapping[str, Any]] = status.get("containerStatuses") or ()
    ended = (container.get("state", {}).get("terminated") for container in containers)
    return next((state for state in ended if state), {})


def _is_interrupted(meta: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the trainer ended well, and not before its end was asked for. In whole seconds, as Kubernetes has them:
    what happened in the same second counts as asked for, as a command that ends with 0 on SIGTERM does so at once."""
    requested = _delete_requested(meta)
    if requested is None or status.get("phase") != "Succeeded":
        return False
    ended = {
        container.get("name"): moment
        for container in status.get("containerStatuses") or ()
        if (moment := parse_time(((container.get("state") or {}).get("terminated") or {}).get("finishedAt")))
    }
    finished = ended.get(TRAINER_CONTAINER) or max(ended.values(), default=None)
    return finished is not None and finished >= requested


def _waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of the first container that waits. The kubelet tells of an image in two ways in turn, of which
    the one holds the other: told as one, they are not news each time."""
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = ((container.get("state") or {}).get("waiting") or {} for container in containers)
    found = next((state for state in states if state.get("reason") not in NO_NEWS), {})
    reason, message = found.get("reason", ""), found.get("message", "")
    if reason == "ErrImagePull":
        reason = "ImagePullBackOff"
    return reason, message.rpartition("ErrImagePull: ")[2][:MAX_TERMINATION_MESSAGE_CHARACTERS]


NO_NEWS = frozenset({None, "", "ContainerCreating", "PodInitializing"})


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[
        :MAX_TERMINATION_MESSAGE_CHARACTERS
    ]


def _true_conditions(body: Body) -> dict[str, Mapping[str, Any]]:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition for condition in conditions if condition.get("status") == "True"}
