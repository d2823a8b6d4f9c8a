"""The table of frontiers in the segment: one entry for each communicator and each directed pair of ranks."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from megatronapp.trainer.agent import layout
from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.segment_writer import SegmentWriter


@dataclass(slots=True)
class _Entry:
    """One track's operations, counted from 1. `open`: those that have not completed, by ticket, the oldest first.
    `newest`: that which was handed over last; where a collective's are all through it tells how this was called."""

    communicator: int
    peer: int
    sending: bool
    enqueued: int = 0
    started: int = 0
    completed: int = 0
    enqueued_at_ns: int = 0
    completed_at_ns: int = 0
    open: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """(operation, step and message as in layout.OPEN_MESSAGE, when it was posted)"""
    newest: tuple[int, int, int, int] | None = None

    def pack(self) -> bytes:
        open_ = len(self.open) if self.peer >= 0 else min(len(self.open), 1)
        shown = list(itertools.islice(self.open.values(), min(open_, layout.OPEN_MESSAGES)))
        if self.newest is not None and not shown and self.peer < 0:
            shown = [self.newest]
        head = layout.FRONTIER.pack(
            self.communicator,
            self.peer,
            self.sending,
            shown[0][0] if shown else -1,
            self.enqueued,
            self.started,
            self.completed,
            self.enqueued_at_ns,
            self.completed_at_ns,
            open_,
        )
        return head + b"".join(layout.OPEN_MESSAGE.pack(*message) for _, *message in shown)


class FrontierTable:
    """For any thread. A track beyond the table's room is counted, and not shown."""

    def __init__(self, segment: SegmentWriter) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        self._index: dict[tuple[int, int, bool], int] = {}
        self._entries: list[_Entry] = []

    def track(self, communicator: int, peer: int, sending: bool, /) -> int:
        key = (communicator, peer, sending)
        with self._lock:
            index = self._index.get(key)
            if index is None:
                index = self._index[key] = len(self._entries)
                self._entries.append(_Entry(*key))
                self._publish(index)
                self._segment.set_entries(min(len(self._entries), self._segment.sections.entries))
            return index

    def enqueue(self, track: int, operation: int, step: int, message: int, /) -> int:
        with self._lock:
            entry = self._entries[track]
            entry.enqueued += 1
            entry.enqueued_at_ns = now_ns()
            entry.newest = entry.open[entry.enqueued] = (operation, step, message, entry.enqueued_at_ns)
            self._publish(track)
            return entry.enqueued

    def started(self, track: int, /) -> None:
        with self._lock:
            entry = self._entries[track]
            entry.started = min(entry.started + 1, entry.enqueued)
            self._publish(track)

    def complete(self, track: int, ticket: int, /) -> None:
        """`completed` moves past all that have, in order."""
        with self._lock:
            entry = self._entries[track]
            if entry.open.pop(ticket, None) is None:
                return
            entry.completed = next(iter(entry.open), entry.enqueued + 1) - 1
            entry.started = max(entry.started, entry.completed)
            entry.completed_at_ns = now_ns()
            self._publish(track)

    def _publish(self, index: int) -> None:
        if index < self._segment.sections.entries:
            self._segment.set_frontier(index, self._entries[index].pack())
