"""Lists of what the watches follow: at the start, when a watch has begun anew, and now and then.

kopf tells of what is there when a watch begins, not of what has gone since the last one ended, and its indexes are full
only after a time that grows with the square of the number of objects (every object waits for every other). A list
knows both: when it is whole, and what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import paths
from megatronapp.operator.api import Api, Body, GoneError
from megatronapp.operator.kinds import KINDS, Kind

log = get_logger(__name__)

QUIET_SECONDS = 2.0
"""A watch that begins tells of each object by itself; the list waits for the last."""
EVERY_SECONDS = 600.0
RETRY_SECONDS = 2.0

Listed = Callable[[Kind, Iterable[Body], int], None]


class Lister:
    """Hands each list to `listed`, with the version at which it was made."""

    def __init__(self, api: Api, namespaces: tuple[str, ...], listed: Listed) -> None:
        self._api, self._namespaces, self._listed = api, namespaces, listed
        self._wanted: dict[Kind, asyncio.Event] = {kind: asyncio.Event() for kind in KINDS}

    async def fill(self) -> None:
        """All kinds, once. Returns when each has been listed, however long the server takes."""
        await asyncio.gather(*(self._list(kind) for kind in KINDS))

    async def run(self) -> None:
        """List when that is wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in KINDS:
                group.create_task(self._again(kind))

    def begun(self, kind: Kind) -> None:
        """The watch of this kind tells what is there, as it has begun anew."""
        self._wanted[kind].set()

    async def _again(self, kind: Kind) -> None:
        wanted = self._wanted[kind]
        while True:
            if await _within(wanted, EVERY_SECONDS):
                wanted.clear()
                while await _within(wanted, QUIET_SECONDS):
                    wanted.clear()
            await self._list(kind)

    async def _list(self, kind: Kind) -> None:
        spaces = self._namespaces if kind.namespaced and self._namespaces else (None,)
        while True:
            try:
                lists = [await self._api.list_all(paths.listing(kind, space), kind.selector) for space in spaces]
            except (UnavailableError, GoneError) as error:
                log.warning("not_listed", kind=kind.plural, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            bodies = [body for found in lists for body in found.items]
            return self._listed(kind, bodies, min(found.version for found in lists))


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
