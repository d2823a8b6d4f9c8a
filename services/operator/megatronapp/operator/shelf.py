"""Objects of one kind as the API server last told of them: lists replace, events change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from megatronapp.operator.observed import version_of

Group = TypeVar("Group", bound=Hashable)
Value = TypeVar("Value")
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Group, Value]):
    version: int
    group: Group
    value: Value


class Shelf(Generic[Group, Value]):
    """`value_of` an object is what is kept of it, `group_of` it what it is looked up by.

    Lists and events come by different connections, each late by its own time. The newer version of an object wins; an
    object that a list no longer has is gone, unless an event has brought a version newer than the list.
    """

    def __init__(self, group_of: Callable[[Body], Group], value_of: Callable[[Body], Value]) -> None:
        self._group_of, self._value_of = group_of, value_of
        self._kept: dict[str, _Kept[Group, Value]] = {}
        """By uid: an object that was deleted and made again is another one."""
        self._groups: dict[Group, dict[str, Value]] = {}
        self._deleted: set[str] = set()
        """Since the last list: it may have been made before."""

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group: Group) -> tuple[Value, ...]:
        return tuple(self._groups.get(group, {}).values())

    def put(self, body: Body) -> Group | None:
        """Take in an object as it is now. The group that has changed; None where nothing that is kept has."""
        uid, version = body["metadata"]["uid"], version_of(body)
        before = self._kept.get(uid)
        if uid in self._deleted or (before is not None and version <= before.version):
            return None
        kept = _Kept(version, self._group_of(body), self._value_of(body))
        self._kept[uid] = kept
        if before is not None and (before.group, before.value) == (kept.group, kept.value):
            return None
        if before is not None and before.group != kept.group:
            self._leave(before.group, uid)
        self._groups.setdefault(kept.group, {})[uid] = kept.value
        return kept.group

    def drop(self, body: Body) -> Group:
        """Take in that an object is gone. Its group."""
        uid = body["metadata"]["uid"]
        self._deleted.add(uid)
        return self._remove(uid) if uid in self._kept else self._group_of(body)

    def replace(self, bodies: Iterable[Body], version: int) -> set[Group]:
        """Take in a list of all objects, made at `version`. The groups that have changed."""
        listed, changed = set(), set()
        for body in bodies:
            listed.add(body["metadata"]["uid"])
            group = self.put(body)
            if group is not None:
                changed.add(group)
        gone = [uid for uid, kept in self._kept.items() if uid not in listed and kept.version <= version]
        changed.update(self._remove(uid) for uid in gone)
        self._deleted.clear()
        return changed

    def _remove(self, uid: str) -> Group:
        group = self._kept.pop(uid).group
        self._leave(group, uid)
        return group

    def _leave(self, group: Group, uid: str) -> None:
        there = self._groups[group]
        del there[uid]
        if not there:
            del self._groups[group]
