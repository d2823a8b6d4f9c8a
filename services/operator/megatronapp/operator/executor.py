"""Actions as requests to the API server."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from megatronapp.core.logging import get_logger
from megatronapp.core.trainingjob import Status, TrainingJob
from megatronapp.operator import names, nodes, paths
from megatronapp.operator.actions import Action, Create, Delete, MarkNode, RecordEvent, StartJob, StopJob
from megatronapp.operator.api import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    AlreadyExistsError,
    Api,
    ConflictError,
    GoneError,
    RefusedError,
)
from megatronapp.operator.crd.definition import GROUP, KIND, VERSION
from megatronapp.operator.names import Key
from megatronapp.operator.observation import Observation
from megatronapp.operator.snapshots import format_time

log = get_logger(__name__)


class Executor:
    """Does what was decided. Every method may be called twice with the same effect as once."""

    def __init__(self, api: Api, identity: str) -> None:
        self._api = api
        self._identity = identity

    async def write_status(self, body: dict[str, Any], before: Status | None, after: Status) -> dict[str, Any]:
        """The object as it is now. Raises ConflictError when it is no longer `body`, the one that was looked at.

        Replaced as a whole: a patch costs the API server half as much again.
        """
        return await self.replace_status(body, rewritten(body.get("status") or {}, _dumped(before), _dumped(after)))

    async def replace_status(self, body: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        """The same, with a status as it stands in the object."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._api.replace(paths.status(key), {**body, "status": status})

    async def do(self, action: Action, observation: Observation) -> dict[str, Any] | None:
        """The object that was made or changed. Raises RefusedError for one that the server does not take."""
        namespace = observation.job.metadata.namespace
        match action:
            case Create(body):
                return await self._create(body, observation.job)
            case StopJob(name, reason):
                annotations = {names.STOPPED: str(reason)}
                patch = {"metadata": {"annotations": annotations}, "spec": {"parallelism": 0}}
                return await self._patch(paths.job(namespace, name), patch)
            case StartJob(name):
                return await self._patch(paths.job(namespace, name), {"spec": {"suspend": False}})
            case Delete(kind, name):
                await self._delete(paths.child(kind, namespace, name))
            case MarkNode():
                await self._mark(action, observation)
            case RecordEvent():
                await self._record_event(action, observation)
        return None

    async def events_of(self, namespace: str, kind: str, name: str) -> list[dict[str, Any]]:
        """What Kubernetes told of an object; nothing where the operator may not ask."""
        query = urlencode({"fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}", "limit": "100"})
        try:
            found: list[dict[str, Any]] = (await self._api.get(f"{paths.events(namespace)}?{query}"))["items"]
        except (RefusedError, GoneError) as error:
            log.warning("events_not_read", namespace=namespace, error=str(error))
            return []
        return found

    async def release(self, name: str, now: datetime) -> None:
        """Take the operator's own taint and condition from a node; others' stay."""
        condition = nodes.condition(
            False, "left alone for long enough; found slow again, it is for twice as long", format_time(now)
        )
        body = await self._patch(f"{paths.node(name)}/status", condition, STRATEGIC_PATCH)
        if body is not None:
            await self._patch(paths.node(name), nodes.released(body))
            log.info("node_released", node=name)

    async def _create(self, body: dict[str, Any], job: TrainingJob) -> dict[str, Any] | None:
        path = paths.collection(body)
        try:
            made = await self._api.create(path, body)
        except AlreadyExistsError:
            there = await self._find(path, body["metadata"]["name"])
            if there is None:
                # It has gone in between: it is not there, so it has to be made.
                raise
            if _owner(there) == job.metadata.uid:
                return there
            if _is_leftover(there):
                # Of a deleted job of the same name: Kubernetes is clearing it away.
                raise
            raise RefusedError(
                f"{body['kind']} {body['metadata']['name']} is there and belongs to somebody else; delete it, or take "
                "another name for the job"
            ) from None
        log.info("created", kind=body["kind"], name=made["metadata"]["name"], namespace=made["metadata"]["namespace"])
        return made

    async def _mark(self, action: MarkNode, observation: Observation) -> None:
        condition = nodes.condition(True, action.message, format_time(observation.now))
        # The condition first: once the taint is there, the node counts as marked.
        body = await self._patch(f"{paths.node(action.node)}/status", condition, STRATEGIC_PATCH)
        if body is not None:
            await self._patch(paths.node(action.node), nodes.marked(body, action.mark))
            log.warning("node_marked", node=action.node, until=format_time(action.mark.until), message=action.message)

    async def _record_event(self, action: RecordEvent, observation: Observation) -> None:
        """An event is recorded once: its name is made of what it says."""
        meta, now = observation.job.metadata, format_time(observation.now)
        content = f"{meta.uid}/{observation.attempt}/{action.reason}/{action.message}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{meta.name}.{sha256(content.encode()).hexdigest()[:16]}",
                "namespace": meta.namespace,
            },
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
            },
            "type": "Warning" if action.warning else "Normal",
            "reason": action.reason,
            "message": action.message,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": names.MANAGED_BY},
            "reportingComponent": names.MANAGED_BY,
            "reportingInstance": self._identity,
        }
        try:
            await self._api.create(paths.events(meta.namespace), body)
        except (ConflictError, RefusedError, GoneError) as error:
            log.debug("event_not_told", reason=action.reason, error=str(error))

    async def _find(self, path: str, name: str) -> dict[str, Any] | None:
        """One object of a collection; by listing, for which the operator has the right anyway."""
        found = (await self._api.get(f"{path}?fieldSelector=metadata.name={name}"))["items"]
        return found[0] if found else None

    async def _patch(self, path: str, body: dict[str, Any], kind: str = MERGE_PATCH) -> dict[str, Any] | None:
        try:
            return await self._api.patch(path, body, kind)
        except GoneError:
            return None

    async def _delete(self, path: str) -> None:
        try:
            await self._api.delete(path)
        except GoneError:
            return


def rewritten(there: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The status that is there, with what was read of it put anew: what a newer operator added stays."""
    return {**{name: value for name, value in there.items() if name not in before}, **after}


def _dumped(status: Status | None) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True) if status else {}


def _owner(body: dict[str, Any]) -> str:
    owners = body["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _is_leftover(body: dict[str, Any]) -> bool:
    owners = body["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == KIND for owner in owners)
