"""A run's events in Redis before viewers see them, so that the replica that takes the run over goes on with the same
history: what a viewer has seen is never missing there, nor another event under its number."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.gateway.scope.events import Ring, Source
from megatronapp.v1 import scope_pb2

if TYPE_CHECKING:
    from megatronapp.core.registry import Registry

log = get_logger(__name__)

KEPT_SECONDS = 3600.0
MAX_BATCH = 256


class KeptEvents:
    """For one event loop; `run` is to be a task of its own."""

    def __init__(self, registry: Registry, run: str, ring: Ring, size: int) -> None:
        self._registry, self._run, self._ring, self._size = registry, run, ring, size
        self._waiting: list[str] = []
        self._came = asyncio.Event()

    def append(self, event: scope_pb2.ScopeEvent, source: Source | None) -> None:
        self._waiting.append(self._ring.numbered(event, source))
        self._came.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                await self._keep(batch)
                self._ring.show(batch)

    async def _keep(self, texts: list[str]) -> None:
        """Where Redis does not answer they are shown all the same; they are of a history that nobody continues."""
        try:
            values = [f"{self._ring.epoch} {text}".encode() for text in texts]
            await self._registry.append(self._run, values, self._size, KEPT_SECONDS)
        except UnavailableError as error:
            log.warning("scope_events_not_kept", run=self._run, error=str(error))
            self._ring.begin_epoch()


async def restored(registry: Registry, run: str, size: int) -> Ring:
    """The run's history as another replica has left it; an empty one where there is none. Raises UnavailableError."""
    ring = Ring(size)
    entries = [value.decode().split(" ", 1) for value in await registry.kept(run)]
    if entries:
        epoch = entries[-1][0]
        ring.restore(epoch, [text for of, text in entries if of == epoch])
    return ring
