"""Names, labels and annotations of what the operator makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

DOMAIN = "megatronapp.io"
JOB_LABEL = f"{DOMAIN}/training-job"
RUN_LABEL = f"{DOMAIN}/run"
"""The TrainingJob's uid: children of an earlier one of the same name are not its own."""
ATTEMPT_LABEL = f"{DOMAIN}/attempt"
ROLE_LABEL = f"{DOMAIN}/role"
"""What the ranks of a Job do, where they don't all do the same."""
FORWARD, BACKWARD = "forward", "backward"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "megatronapp-operator"
STOPPED = f"{DOMAIN}/stopped"
"""On a Job that was told to stop: why. Such a Job never starts again."""
HELD = f"{DOMAIN}/held"
"""On a Job that was made suspended, as its TrainingJob was: nothing but the operator lets it start."""
DIGEST = f"{DOMAIN}/digest"
"""On a Job: of what it was rendered from, so that one that has not started yet can be told to be out of date."""


class Key(NamedTuple):
    """Which TrainingJob."""

    namespace: str
    name: str

    @classmethod
    def of_child(cls, body: Mapping[str, Any]) -> Key:
        """Whose an object is, by its label."""
        metadata = body["metadata"]
        return cls(metadata["namespace"], (metadata.get("labels") or {}).get(JOB_LABEL, ""))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def child(name: str, attempt: int, role: str = "") -> str:
    """The Job of an attempt. Always the same name, so that a crash between create and record makes no second one."""
    return f"{name}-{attempt}-{FORWARD}" if role == FORWARD else f"{name}-{attempt}"


def service(name: str) -> str:
    return f"{name}-ranks"
