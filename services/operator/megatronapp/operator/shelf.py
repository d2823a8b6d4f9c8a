"""Objects of one kind as the API server last told of them: lists replace, events change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Group = TypeVar("Group", bound=Hashable)
Value = TypeVar("Value")
Body = dict[str, Any]


class Shelf(Generic[Group, Value]):
    """`value_of` an object is what is kept of it, `group_of` it what it is looked up by."""

    def __init__(self, group_of: Callable[[Body], Group], value_of: Callable[[Body], Value]) -> None:
        self._group_of, self._value_of = group_of, value_of
        self._kept: dict[str, tuple[Group, Value]] = {}
        """By uid: an object that was deleted and made again is another one."""
        self._groups: dict[Group, dict[str, Value]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group: Group) -> tuple[Value, ...]:
        return tuple(self._groups.get(group, {}).values())

    def put(self, body: Body) -> Group | None:
        """Take in an object as it is now. The group that has changed; None where nothing that is kept has."""
        uid, kept = body["metadata"]["uid"], (self._group_of(body), self._value_of(body))
        before, group = self._kept.get(uid), kept[0]
        if before == kept:
            return None
        if before is not None and before[0] != group:
            self._leave(before[0], uid)
        self._kept[uid] = kept
        self._groups.setdefault(group, {})[uid] = kept[1]
        return group

    def drop(self, body: Body) -> Group:
        """Take in that an object is gone. Its group."""
        uid = body["metadata"]["uid"]
        return self._remove(uid) if uid in self._kept else self._group_of(body)

    def replace(self, bodies: Iterable[Body]) -> set[Group]:
        """Take in a list of all objects: what it does not have is gone. The groups that have changed."""
        listed, changed = set(), set()
        for body in bodies:
            listed.add(body["metadata"]["uid"])
            group = self.put(body)
            if group is not None:
                changed.add(group)
        changed.update(self._remove(uid) for uid in self._kept.keys() - listed)
        return changed

    def _remove(self, uid: str) -> Group:
        group, _ = self._kept.pop(uid)
        self._leave(group, uid)
        return group

    def _leave(self, group: Group, uid: str) -> None:
        there = self._groups[group]
        del there[uid]
        if not there:
            del self._groups[group]
