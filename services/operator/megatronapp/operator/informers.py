"""What the API server has told of each kind, as values. Reflectors fill it; the cache reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatronapp.operator import json_text
from megatronapp.operator.indexer import Indexer, SetAside
from megatronapp.operator.kinds import JOBS, NODES, PODS, SERVICES, TRAINING_JOBS, Kind
from megatronapp.operator.names import Key
from megatronapp.operator.snapshots import ChildJob, Node, Pod, Unreadable, owner_uid

Body = dict[str, Any]


def _nobody(_: Unreadable) -> None:
    """Told of what is set aside."""


class InformerCache:
    """An indexer for each kind; by TrainingJob, nodes by their name."""

    def __init__(self, aside: SetAside = _nobody) -> None:
        self.jobs: Indexer[Key, Body] = Indexer(TRAINING_JOBS.plural, _own_key, plain, aside)
        self.children: Indexer[Key, ChildJob] = Indexer(JOBS.plural, Key.of_child, ChildJob.of, aside)
        self.pods: Indexer[Key, Pod] = Indexer(PODS.plural, Key.of_child, Pod.of, aside)
        self.services: Indexer[Key, str] = Indexer(
            SERVICES.plural, Key.of_child, lambda body: owner_uid(body["metadata"]), aside
        )
        self.nodes: Indexer[str, Node] = Indexer(NODES.plural, lambda body: body["metadata"]["name"], Node.of, aside)
        self._of_jobs: dict[Kind, Indexer[Key, Any]] = {
            TRAINING_JOBS: self.jobs,
            JOBS: self.children,
            PODS: self.pods,
            SERVICES: self.services,
        }

    def event(self, kind: Kind, body: Body, deleted: bool) -> set[Key]:
        """Take in an event of a watch. The TrainingJobs that it matters to."""
        if kind == NODES:
            name = self.nodes.drop(body) if deleted else self.nodes.put(body)
            return self.keys_on({name}) if name else set()
        indexer = self._of_jobs[kind]
        key = indexer.drop(body) if deleted and not self._is_evidence(kind, body) else indexer.put(body)
        return {key} if key else set()

    def forget(self, key: Key) -> None:
        """Pods that are gone and were kept for a TrainingJob, which is gone as well."""
        self.pods.discard(key, lambda pod: pod.interrupted)

    def _is_evidence(self, kind: Kind, body: Body) -> bool:
        """A pod that ended with 0 as it was told to end: Kubernetes counts it as completed, and once it is gone nothing
        else shows that it is not. It stays until the next attempt has such a pod, or all are listed anew."""
        try:
            found = Pod.of(body) if kind == PODS else None
        except Exception:  # noqa: BLE001  # one that can't be read is no evidence
            return False
        if found is None or not found.interrupted:
            return False
        self.pods.discard(Key.of_child(body), lambda pod: pod.interrupted and pod.attempt < found.attempt)
        return True

    def listed(self, kind: Kind, bodies: Iterable[Body]) -> set[Key]:
        """Take in a list of all objects of a kind. The TrainingJobs to which its news matter."""
        if kind == NODES:
            return self.keys_on(self.nodes.replace(bodies))
        return self._of_jobs[kind].replace(bodies)

    def keys_on(self, nodes: set[str]) -> set[Key]:
        """TrainingJobs with a pod on one of these nodes."""
        return {key for key in self.pods if any(pod.node in nodes for pod in self.pods.get(key))} if nodes else set()

    def unreadable(self, key: Key) -> tuple[Unreadable, ...]:
        """What belongs to a TrainingJob and can't be read."""
        return tuple(found for indexer in self._of_jobs.values() for found in indexer.unreadable(key))


def plain(body: Body) -> Body:
    """Without what only other appliers need, and without depths that can't be written again."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    found: Body = json_text.shallow({**body, "metadata": metadata})
    return found


def _own_key(body: Body) -> Key:
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])
