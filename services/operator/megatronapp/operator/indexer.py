"""Objects of one kind as the API server last told of them: lists replace, events change.

An object that can't be read has its place here too, as one that can't: it is told of once for each version, is in
nobody's way, and goes when the object goes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from megatronapp.operator.snapshots import Unreadable

Group = TypeVar("Group", bound=Hashable)
Value = TypeVar("Value")
Body = dict[str, Any]
SetAside = Callable[[Unreadable], None]


class Indexer(Generic[Group, Value]):
    """`value_of` an object is what is kept of it (None: nothing), `group_of` it what it is looked up by. What
    `value_of` raises is told to `aside`."""

    def __init__(
        self, kind: str, group_of: Callable[[Body], Group], value_of: Callable[[Body], Value | None], aside: SetAside
    ) -> None:
        self._kind, self._group_of, self._value_of, self._aside = kind, group_of, value_of, aside
        self._kept: dict[str, tuple[Group, Value | Unreadable]] = {}
        """By uid: an object that was deleted and made again is another one."""
        self._groups: dict[Group, dict[str, Value | Unreadable]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group: Group) -> tuple[Value, ...]:
        return tuple(value for value in self._of(group) if not isinstance(value, Unreadable))

    def unreadable(self, group: Group) -> tuple[Unreadable, ...]:
        return tuple(value for value in self._of(group) if isinstance(value, Unreadable))

    def put(self, body: Body) -> Group | None:
        """Take in an object as it is now. The group that has changed; None where nothing that is kept has."""
        uid, group, value = body["metadata"]["uid"], self._group_of(body), self._read(body)
        before = self._kept.get(uid)
        if value is None:
            return self._remove(uid) if before else None
        if before == (group, value):
            return None
        if isinstance(value, Unreadable):
            self._aside(value)
        if before is not None and before[0] != group:
            self._leave(before[0], uid)
        self._kept[uid] = (group, value)
        self._groups.setdefault(group, {})[uid] = value
        return group

    def drop(self, body: Body) -> Group:
        """Take in that an object is gone. Its group."""
        uid = body["metadata"]["uid"]
        return self._remove(uid) if uid in self._kept else self._group_of(body)

    def discard(self, group: Group, is_meant: Callable[[Value], bool]) -> None:
        """Let go of a group's values for which it holds, though their objects may be there."""
        there = self._groups.get(group, {})
        for uid in [uid for uid, value in there.items() if not isinstance(value, Unreadable) and is_meant(value)]:
            self._remove(uid)

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

    def _read(self, body: Body) -> Value | Unreadable | None:
        try:
            return self._value_of(body)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one object is that object's matter
            return Unreadable.of(self._kind, body, error)

    def _of(self, group: Group) -> Iterable[Value | Unreadable]:
        return self._groups.get(group, {}).values()

    def _remove(self, uid: str) -> Group:
        group, _ = self._kept.pop(uid)
        self._leave(group, uid)
        return group

    def _leave(self, group: Group, uid: str) -> None:
        there = self._groups[group]
        del there[uid]
        if not there:
            del self._groups[group]
