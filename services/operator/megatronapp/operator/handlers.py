"""kopf's part: five watches fill indexes and mark TrainingJobs. Level-triggered: an event only says "look again".

All handlers are coroutines: kopf would run plain functions in threads, where the queue must not be touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from megatronapp.operator import names
from megatronapp.operator.cache import Watched
from megatronapp.operator.crd.definition import GROUP, PLURAL, VERSION
from megatronapp.operator.names import Key
from megatronapp.operator.observed import ChildJob, Node, Pod, owner_uid

TRAINING_JOBS = (GROUP, VERSION, PLURAL)
JOBS = ("batch", "v1", "jobs")
PODS = ("", "v1", "pods")
SERVICES = ("", "v1", "services")
NODES = ("", "v1", "nodes")

Body = Mapping[str, Any]


def settings() -> kopf.OperatorSettings:
    """No scan of the cluster's resources and namespaces, no events and no annotations of kopf's own; only children
    of TrainingJobs are watched."""
    found = kopf.OperatorSettings()
    found.scanning.disabled = True
    found.posting.enabled = False
    found.queueing.exit_timeout = 1.0
    found.watching.reconnect_backoff = 1.0
    for kind in (JOBS, PODS, SERVICES):
        found.watching.label_selectors[kind] = f"{names.JOB_LABEL},{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
    return found


def registry(
    mark: Callable[[Key], None],
    deleted: Callable[[Key, str], None],
    on_node: Callable[[str], None],
    login: Callable[..., Any],
) -> kopf.OperatorRegistry:
    """All handlers. `mark` is told of each TrainingJob something has happened to."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(login)
    _indexes(found)

    @kopf.on.event(*TRAINING_JOBS, registry=found)
    async def _on_job(name: str | None, namespace: str | None, **_: Any) -> None:
        mark(Key(str(namespace), str(name)))

    for kind in (JOBS, PODS, SERVICES):

        @kopf.on.event(*kind, registry=found)
        async def _on_child(body: Body, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
            key = _key(body)
            if type == "DELETED" and body.get("kind") == "Job":
                deleted(key, body["metadata"]["name"])
            mark(key)

    @kopf.on.event(*NODES, registry=found)
    async def _on_node(name: str | None, **_: Any) -> None:
        on_node(str(name))

    return found


def watched(indices: Mapping[str, Any]) -> Watched:
    """The indexes as kopf hands them to handlers."""
    return Watched(
        jobs=indices["jobs"],
        children=indices["children"],
        pods=indices["pods"],
        services=indices["services"],
        nodes=indices["nodes"],
    )


def _indexes(found: kopf.OperatorRegistry) -> None:
    @kopf.index(*TRAINING_JOBS, id="jobs", registry=found)
    async def _jobs(body: Body, **_: Any) -> dict[Key, dict[str, Any]]:
        return {Key(body["metadata"]["namespace"], body["metadata"]["name"]): plain(body)}

    @kopf.index(*JOBS, id="children", registry=found)
    async def _children(body: Body, **_: Any) -> dict[Key, ChildJob]:
        return {_key(body): ChildJob.of(plain(body))}

    @kopf.index(*PODS, id="pods", registry=found)
    async def _pods(body: Body, **_: Any) -> dict[Key, Pod]:
        return {_key(body): Pod.of(plain(body))}

    @kopf.index(*SERVICES, id="services", registry=found)
    async def _services(body: Body, **_: Any) -> dict[Key, str]:
        return {_key(body): owner_uid(body["metadata"])}

    @kopf.index(*NODES, id="nodes", registry=found)
    async def _nodes(body: Body, **_: Any) -> dict[str, Node]:
        return {body["metadata"]["name"]: Node.of(plain(body))}


def plain(body: Body) -> dict[str, Any]:
    """Without kopf's views, and without what only other appliers need."""
    found = dict(body)
    found["metadata"] = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    return found


def _key(body: Body) -> Key:
    meta = body["metadata"]
    return Key(meta["namespace"], meta["labels"][names.JOB_LABEL])
