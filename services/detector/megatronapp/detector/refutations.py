"""Refutations: people's word that a finding is none, from the bus to whoever judges its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from google.protobuf.message import DecodeError

from megatronapp.core.bus import Bus, Message, Topic, read_kept
from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import REFUTABLE, Finding
from megatronapp.core.logging import get_logger
from megatronapp.detector.outbox import FindingsOutbox
from megatronapp.v1 import findings_pb2

log = get_logger(__name__)

RETRY_SECONDS = 0.5


class Refutations:
    """All that the bus keeps is read at each start, and a word may come twice: what was taken shows in the finding."""

    def __init__(self, bus: Bus, outbox: FindingsOutbox, refute: Callable[[Finding], None]) -> None:
        """refute: hears of each finding that was not refuted before."""
        self._bus, self._outbox, self._refute = bus, outbox, refute

    async def follow(self) -> None:
        """Until cancelled."""
        async for messages in self._bus.follow(Topic.REFUTATIONS):
            for message in messages:
                await self._take(message)

    async def read_again(self, runs: Collection[str]) -> None:
        """What was said of these runs while somebody else judged them. Raises UnavailableError."""
        async for message in read_kept(self._bus, Topic.REFUTATIONS):
            if message.key in runs:
                await self._take(message)

    async def _take(self, message: Message) -> None:
        finding = await self._meant(message)
        if finding is not None and finding.kind in REFUTABLE and not finding.refuted:
            self._refute(finding)
            await self._outbox.send()

    async def _meant(self, message: Message) -> Finding | None:
        """The finding that a person speaks of, None if there is none such."""
        try:
            word = findings_pb2.Refutation.FromString(message.value)
        except DecodeError as error:
            log.warning("refutation_unreadable", bytes=len(message.value), error=str(error))
            return None
        while True:
            try:
                return await self._outbox.get(word.finding)
            except UnavailableError:
                await asyncio.sleep(RETRY_SECONDS)
