"""What the watches have brought, and what the operator itself wrote and has not heard back yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from megatronapp.operator.indexer import Indexer
from megatronapp.operator.informers import InformerCache, plain
from megatronapp.operator.names import Key
from megatronapp.operator.snapshots import ChildJob, Node, Pod, Unreadable, version_of

Body = dict[str, Any]


class Cache:
    """Reads are as new as the operator's own last write: a decision never sees the past of its own doing."""

    def __init__(self, informers: InformerCache) -> None:
        self._informers = informers
        self._own_jobs: dict[Key, Body] = {}
        self._own_children: dict[Key, dict[str, ChildJob]] = {}

    def job_keys(self) -> list[Key]:
        return list(self._informers.jobs)

    def job(self, key: Key) -> Body | None:
        """The newest known TrainingJob; None when it is gone."""
        body = _newest(self._informers.jobs.get(key))
        own = self._own_jobs.get(key)
        if own is None or body is None or own["metadata"]["uid"] != body["metadata"]["uid"]:
            self._own_jobs.pop(key, None)
            return body
        if version_of(body) >= version_of(own):
            del self._own_jobs[key]
            return body
        return own

    def children(self, key: Key, uid: str) -> tuple[ChildJob, ...]:
        """Jobs of this very TrainingJob, oldest attempt first."""
        known: dict[str, ChildJob] = {child.name: child for child in self._informers.children.get(key)}
        for name, own in list(self._own_children.get(key, {}).items()):
            if name not in known or known[name].version < own.version:
                known[name] = own
            else:
                self.deleted_child(key, name)
        mine = (child for child in known.values() if child.run == uid)
        return tuple(sorted(mine, key=lambda child: child.attempt))

    def pods(self, key: Key) -> tuple[Pod, ...]:
        return self._informers.pods.get(key)

    def unreadable(self, key: Key) -> tuple[Unreadable, ...]:
        return self._informers.unreadable(key)

    def has_service(self, key: Key, uid: str) -> bool:
        return uid in self._informers.services.get(key)

    def nodes(self) -> Mapping[str, Node]:
        return Nodes(self._informers.nodes)

    def wrote_job(self, key: Key, body: Body) -> None:
        self._own_jobs[key] = plain(body)

    def wrote_child(self, key: Key, body: Body) -> None:
        child = ChildJob.of(body)
        if child is not None:
            self._own_children.setdefault(key, {})[child.name] = child

    def forget(self, key: Key) -> None:
        """A TrainingJob that is gone."""
        self._own_jobs.pop(key, None)
        self._own_children.pop(key, None)
        self._informers.forget(key)

    def listed_children(self, version: int) -> None:
        """All Jobs were listed at this version: what was written before and is not among them is gone."""
        for key, own in list(self._own_children.items()):
            for child in list(own.values()):
                if child.version <= version:
                    self.deleted_child(key, child.name)

    def deleted_child(self, key: Key, name: str) -> None:
        """A Job that is gone, or that the watch has caught up with."""
        own = self._own_children.get(key, {})
        own.pop(name, None)
        if not own:
            self._own_children.pop(key, None)


class Nodes(Mapping[str, Node]):
    """The cluster's nodes, as they are when looked at."""

    def __init__(self, indexer: Indexer[str, Node]) -> None:
        self._indexer = indexer

    def __getitem__(self, name: str) -> Node:
        found = self._indexer.get(name)
        if not found:
            raise KeyError(name)
        return found[-1]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._indexer if self._indexer.get(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _newest(bodies: Iterable[Body]) -> Body | None:
    return max(bodies, key=version_of, default=None)
