"""Whether the trace-collectors answer: asked once a second, so that a page can tell old from new."""

from __future__ import annotations

import asyncio
import time

from megatronapp.core.logging import get_logger
from megatronapp.gateway.shards import CollectorShards

log = get_logger(__name__)

CHECK_SECONDS = 1.0


class CollectorWatch:
    """`lost_unix_seconds`: since when one has not answered, None while all do."""

    def __init__(self, collector: CollectorShards) -> None:
        self._collector = collector
        self.lost_unix_seconds: float | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            asked = time.time()
            self._note(await self._collector.reachable(), asked)
            await asyncio.sleep(CHECK_SECONDS)

    def _note(self, reachable: bool, unix_seconds: float) -> None:
        if reachable and self.lost_unix_seconds is not None:
            log.info("collector_back", seconds=round(time.time() - self.lost_unix_seconds, 1))
            self.lost_unix_seconds = None
        elif not reachable and self.lost_unix_seconds is None:
            log.warning("collector_lost")
            self.lost_unix_seconds = unix_seconds
