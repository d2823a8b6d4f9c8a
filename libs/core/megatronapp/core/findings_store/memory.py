"""Findings inside this process: tests, and a service that runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatronapp.core.findings_store.base import Row


class MemoryBackend:
    """See `Backend` for what it promises."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Row, bytes]] = {}
        self._annotations: dict[str, list[bytes]] = {}

    async def index(self) -> list[Row]:
        return [row for row, _ in self._rows.values()]

    async def read(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        return {id_: self._rows[id_][1] for id_ in ids if id_ in self._rows}

    async def write(self, row: Row, body: bytes, gone: Sequence[str]) -> None:
        await self.delete(gone)
        self._rows[row.id] = (row, body)

    async def delete(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            self._rows.pop(id_, None)
            self._annotations.pop(id_, None)

    async def annotate(self, id: str, body: bytes, most: int) -> bool:  # noqa: A002  as in `Backend`
        if id not in self._rows:
            return False
        self._annotations[id] = [*self._annotations.get(id, []), body][-most:]
        return True

    async def annotations(self, ids: Sequence[str]) -> Mapping[str, Sequence[bytes]]:
        return {id_: list(self._annotations[id_]) for id_ in ids if id_ in self._annotations}

    async def close(self) -> None:
        return
