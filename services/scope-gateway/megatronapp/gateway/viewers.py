"""Browsers that listen to events. Each has a mailbox of its own, so that a slow one holds up nobody.

A mailbox keeps one entry per thing that can change: a newer state of a job, a step or a finding replaces the older one
that has not been sent yet. Findings are never left out; of a run's steps only the newest wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway import models

MAX_WAITING_STEPS = 256


class Mailbox:
    """What one viewer has not been sent yet."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, str] = {}
        self._steps: dict[Hashable, None] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Hashable, text: str, *, droppable: bool) -> None:
        """Take the newest text for a key; the oldest droppable ones make room for it."""
        self._waiting.pop(key, None)
        self._waiting[key] = text
        if droppable:
            self._steps.pop(key, None)
            self._steps[key] = None
            if len(self._steps) > MAX_WAITING_STEPS:
                oldest = next(iter(self._steps))
                del self._steps[oldest], self._waiting[oldest]
        self._filled.set()

    async def take(self) -> str:
        """The text that has waited longest; waits for one."""
        await self._filled.wait()
        key = next(iter(self._waiting))
        text = self._waiting.pop(key)
        self._steps.pop(key, None)
        if not self._waiting:
            self._filled.clear()
        return text


class Viewers:
    def __init__(self, max_viewers: int) -> None:
        self._max_viewers = max_viewers
        self._mailboxes: set[Mailbox] = set()

    def __len__(self) -> int:
        return len(self._mailboxes)

    @contextmanager
    def join(self) -> Iterator[Mailbox]:
        """A mailbox that takes part until the block ends. Raises UnavailableError when there are too many."""
        if len(self._mailboxes) >= self._max_viewers:
            raise UnavailableError(f"{self._max_viewers} viewers are connected, which is the most that are served")
        mailbox = Mailbox()
        self._mailboxes.add(mailbox)
        try:
            yield mailbox
        finally:
            self._mailboxes.discard(mailbox)

    def publish(self, event: models.JobEvent | models.JobGoneEvent | models.StepEvent | models.FindingEvent) -> None:
        """Put the event, written once, into every mailbox."""
        if not self._mailboxes:
            return
        key, text = _key(event), event.model_dump_json()
        for mailbox in self._mailboxes:
            mailbox.put(key, text, droppable=isinstance(event, models.StepEvent))


def _key(event: models.JobEvent | models.JobGoneEvent | models.StepEvent | models.FindingEvent) -> Hashable:
    match event:
        case models.JobEvent():
            return ("job", event.job.run)
        case models.JobGoneEvent():
            return ("job", event.run)
        case models.StepEvent():
            return ("step", event.run, event.row.step)
        case models.FindingEvent():
            return ("finding", event.finding.id)
