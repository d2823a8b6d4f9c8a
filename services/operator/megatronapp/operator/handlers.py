"""kopf's part: five watches, whose events are handed on. Level-triggered: an event only says how an object is now.

All handlers are coroutines: kopf would run plain functions in threads, where the queue must not be touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from megatronapp.operator.kinds import KINDS, Kind


class NothingStored(kopf.DiffBaseStorage):
    """Events say how an object is, and nobody asks what has changed: the copies that kopf makes of each object to tell
    take a fifth of the operator's processor time."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return {}

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


OnEvent = Callable[[Kind, Any, "str | None"], None]
"""Kind, object, and ADDED, MODIFIED or DELETED; None for what is there when a watch begins."""


def settings() -> kopf.OperatorSettings:
    """No scan of the cluster's resources and namespaces, no events and no annotations of kopf's own; only children
    of TrainingJobs are watched."""
    found = kopf.OperatorSettings()
    found.scanning.disabled = True
    found.posting.enabled = False
    found.persistence.diffbase_storage = NothingStored()
    found.queueing.exit_timeout = 1.0
    found.watching.reconnect_backoff = 1.0
    for kind in KINDS:
        if kind.selector:
            found.watching.label_selectors[kind.resource] = kind.selector
    return found


def registry(on_event: OnEvent, login: Callable[..., Any]) -> kopf.OperatorRegistry:
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(login)
    for kind in KINDS:
        _follow(kind, on_event, found)
    return found


def _follow(kind: Kind, on_event: OnEvent, registry: kopf.OperatorRegistry) -> None:
    @kopf.on.event(*kind.resource, registry=registry)
    async def _on_event(event: Any, **_: Any) -> None:
        on_event(kind, event["object"], event["type"])
