"""One kind of objects as the API server tells of it: a list, then what happens after it, without a gap between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import paths
from megatronapp.operator.api import Api, Body, Change, GoneError
from megatronapp.operator.kinds import Kind
from megatronapp.operator.snapshots import version_of

log = get_logger(__name__)

RETRY_SECONDS = 1.0

OnList = Callable[[Kind, Iterable[Body], int], None]
"""Kind, all its objects, and the version at which they were listed."""
OnEvent = Callable[[Kind, Body, bool], None]
"""Kind, an object as it is now, and whether it is gone."""


class Reflector:
    """Hands on lists and events of one kind, in the order in which things happened."""

    def __init__(self, api: Api, kind: Kind, namespaces: tuple[str, ...], on_list: OnList, on_event: OnEvent) -> None:
        self._api, self._kind, self._on_list, self._on_event = api, kind, on_list, on_event
        self._spaces = namespaces if kind.namespaced and namespaces else (None,)
        self._versions: dict[str | None, int] = {}
        """By namespace: what has happened until then was handed on."""

    async def list(self) -> None:
        """Hand on all that is there, however long the server takes to tell. Raises RefusedError where it must not."""
        while True:
            try:
                lists = [await self._api.list_all(self._path(space), self._kind.selector) for space in self._spaces]
            except (UnavailableError, GoneError) as error:
                log.warning("not_listed", kind=self._kind.plural, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._versions = {space: found.version for space, found in zip(self._spaces, lists, strict=True)}
            bodies = [body for found in lists for body in found.items]
            return self._on_list(self._kind, bodies, min(self._versions.values()))

    async def watch(self) -> None:
        """Hand on what happens after the list, until cancelled. A watch that breaks is followed by another list: what
        happened meanwhile may not be told again."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for space in self._spaces:
                        group.create_task(self._watch(space))
            except* (UnavailableError, GoneError) as broken:
                log.info("watch_broken", kind=self._kind.plural, error=str(broken.exceptions[0]))
            await asyncio.sleep(RETRY_SECONDS)
            await self.list()

    async def _watch(self, space: str | None) -> None:
        """The server ends every watch after a while; the next one goes on where it was."""
        while True:
            events = self._api.watch(self._path(space), self._versions[space], self._kind.selector)
            async with aclosing(events):
                async for change, body in events:
                    self._versions[space] = version_of(body)
                    if change is not Change.BOOKMARK:
                        self._on_event(self._kind, body, change is Change.DELETED)
            await asyncio.sleep(RETRY_SECONDS)

    def _path(self, space: str | None) -> str:
        return paths.listing(self._kind, space)
