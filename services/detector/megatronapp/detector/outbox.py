"""Findings on their way out: first into the store, which is the truth, then onto the bus, which tells the news."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from megatronapp.core.bus import Bus, Topic
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store import FindingsStore
from megatronapp.core.findings_store.codec import decode
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

MAX_WAITING = 20_000
"""Findings, and words of them, that wait while store or bus are away; the oldest go first."""
EXPIRE_SECONDS = 60.0
RETRY_SECONDS = 0.5


class FindingsOutbox:
    def __init__(self, store: FindingsStore, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._unstored: dict[str, Finding] = {}
        """By id, in their newest state."""
        self._unpublished: deque[tuple[str, bytes]] = deque(maxlen=MAX_WAITING)
        """Run and message."""
        self._sending = asyncio.Lock()
        self._failing: set[str] = set()
        """What does not work now; it is logged when it begins and when it has ended."""

    @property
    def has_news(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._unpublished)

    @property
    def empty(self) -> bool:
        return not self._unstored and not self._unpublished

    def put(self, finding: Finding) -> None:
        """Line up a finding for the next `send`. Raises ValueError for one that no message can carry."""
        word = (finding.run, finding.to_proto().SerializeToString())
        self._unstored.pop(finding.id, None)
        self._unstored[finding.id] = finding
        if len(self._unstored) > MAX_WAITING:
            del self._unstored[next(iter(self._unstored))]
        self._unpublished.append(word)

    def forget(self, run: str) -> None:
        """The run is another detector's matter: what waits of it is not told any more."""
        self._unstored = {id_: finding for id_, finding in self._unstored.items() if finding.run != run}
        self._unpublished = deque((word for word in self._unpublished if word[0] != run), maxlen=MAX_WAITING)

    async def send(self) -> None:
        """Store and tell what waits; what can't be now stays in line. A store that takes nothing keeps no news from
        the bus. One at a time: two senders would each take the other's finding out of the line."""
        async with self._sending:
            await self._try("store", self._store_all)
            await self._try("bus", self._publish_all)

    async def get(self, finding_id: str) -> Finding | None:
        """A finding as it was told last; None for one that is not known. Raises UnavailableError."""
        return self._unstored.get(finding_id) or await self._store.get(finding_id)

    async def found_before(self) -> list[Finding]:
        """What was found before this start, the oldest word first. Raises UnavailableError.

        A store that holds nothing learns it from the bus: an earlier version kept findings there alone.
        """
        found = await self._store.find()
        if not found:
            found = await self._on_the_bus()
            for finding in found:
                await self._put(finding)
        return found

    async def open_runs(self) -> set[str]:
        """Runs of which something is open, once the store tells."""
        while True:
            try:
                return {finding.run for finding in await self._store.find(state=State.OPEN)}
            except UnavailableError as error:
                log.warning("open_findings_unknown", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def expire_for_ever(self) -> None:
        """Keep the store within its age and size, until cancelled."""
        while True:
            try:
                await self._store.expire()
            except UnavailableError as error:
                log.warning("findings_not_expired", error=str(error))
            await asyncio.sleep(EXPIRE_SECONDS)

    async def _try(self, what: str, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except UnavailableError as error:
            if what not in self._failing:
                log.warning("findings_wait", what=what, error=str(error))
            self._failing.add(what)
            return
        if what in self._failing:
            log.info("findings_go_on", what=what)
            self._failing.discard(what)

    async def _store_all(self) -> None:
        while self._unstored:
            finding = next(iter(self._unstored.values()))
            await self._put(finding)
            if self._unstored.get(finding.id) is finding:
                del self._unstored[finding.id]

    async def _publish_all(self) -> None:
        while self._unpublished:
            word = self._unpublished[0]
            await self._bus.publish(Topic.FINDINGS, *word)
            if self._unpublished and self._unpublished[0] is word:
                self._unpublished.popleft()

    async def _put(self, finding: Finding) -> None:
        try:
            await self._store.put(finding)
        except DataError as error:  # it is told all the same, and holds up no other
            log.error("finding_not_stored", job=finding.job, run=finding.run, id=finding.id, error=str(error))

    async def _on_the_bus(self) -> list[Finding]:
        """All findings that the bus keeps."""
        findings: list[Finding] = []
        asked_unix_ns = time.time_ns()
        if not (newest := await self._bus.newest(Topic.FINDINGS)):
            return findings
        async for messages in self._bus.follow(Topic.FINDINGS):
            found = [finding for message in messages if (finding := _finding(message.value))]
            findings += found
            # A later one is enough: the newest may have been trimmed away meanwhile.
            later = any(finding.updated_unix_ns >= asked_unix_ns for finding in found)
            if later or newest in {message.id for message in messages}:
                break
        return findings


def _finding(value: bytes) -> Finding | None:
    try:
        return decode(value)
    except DataError as error:
        log.warning("finding_unreadable", bytes=len(value), error=str(error))
        return None
