"""Keys to work on: each at most once at a time, soon when marked, later when asked to, slower after each failure.

No failure of one key is another's: whatever is raised, only that key waits.

A key is in one of these states, and every mark of it leads to a later look at the newest state of the world:

    idle ──mark──▶ marked ──worker──▶ busy ──done──▶ idle         a mark while marked: nothing, the look is to come
                                       │ marked meanwhile: again    a mark while busy: once more afterwards
                                       └─failed──▶ waiting, 1 s, 2 s, 4 s, … ──▶ marked

Events are not queued, keys are: ten events of one object cost one look, and none is lost. After a failure only time
or a mark from outside brings the key back; marks during the failed look do not, or an API server in trouble would be
asked in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from megatronapp.core.logging import get_logger

log = get_logger(__name__)

Key = TypeVar("Key")

FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0
LAST_UNEXPECTED_PAUSE_SECONDS = 300.0
"""After what time alone does not mend."""


class WorkQueue(Generic[Key]):
    """Calls `work(key)`, which returns in how many seconds it wants to be called again though nothing happens, and
    raises one of `expected` when it should be tried again soon."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]], expected: tuple[type[Exception], ...]) -> None:
        self._work = work
        self._expected = expected
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._marked: set[Key] = set()
        """In the queue."""
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        """Marked while worked on."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._marked) + len(self._busy)

    def mark(self, key: Key) -> None:
        """Work on `key` soon."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._marked:
            self._marked.add(key)
            self._ready.put_nowait(key)

    def mark_in(self, key: Key, seconds: float) -> None:
        """Work on `key` after so long, if it is not marked before; replaces an earlier wish."""
        self._forget_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._on_timer, key)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._marked.discard(key)
            self._busy.add(key)
            try:
                await self._one(key)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.mark(key)

    async def _one(self, key: Key) -> None:
        self._forget_timer(key)
        try:
            again = await self._work(key)
            if again is not None:
                self.mark_in(key, again)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one key is that key's matter
            self._failed(key, error)
            return
        self._failures.pop(key, None)

    def _failed(self, key: Key, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        expected = isinstance(error, self._expected)
        longest = LAST_PAUSE_SECONDS if expected else LAST_UNEXPECTED_PAUSE_SECONDS
        pause = min(longest, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16))
        if expected:
            log.info("tried_again_later", key=str(key), seconds=pause, error=str(error))
        else:
            log.error("key_failed", key=str(key), seconds=pause, exc_info=error)
        # What happens meanwhile does not make it come sooner: a server in trouble is not asked more often.
        self._again.discard(key)
        self.mark_in(key, pause)

    def _on_timer(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.mark(key)

    def _forget_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
