"""Progress of each communicator and each directed p2p pair: what was enqueued, started and completed last."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megatronapp.core.trace.message_id import NO_MESSAGE
from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.operations import NAMES
from megatronapp.v1 import trace_pb2

MAX_OPEN = 16
"""Messages that a frontier names, at most."""


@dataclass(slots=True)
class Pending:
    """An operation on its way. The marks are those of its span, known once the call has returned."""

    sequence: int
    operation: int
    begin: Any = None
    end: Any = None
    finished: Callable[[], bool] | None = None
    """Tells of an asynchronous operation nobody has waited for yet."""
    step: int = 0
    message: int = NO_MESSAGE
    posted_at_ns: int = 0


@dataclass(slots=True)
class Track:
    """One communicator's (peer < 0) or directed pair's operations on this rank, counted from 1.

    The training thread enters operations and notes their marks; side threads poll.
    """

    communicator: int
    peer: int = -1
    sending: bool = False
    enqueued: int = 0
    started: int = 0
    completed: int = 0
    enqueued_at_ns: int = 0
    completed_at_ns: int = 0
    pending: deque[Pending] = field(default_factory=deque)

    def enter(self, operation: int, step: int = 0, message: int = NO_MESSAGE) -> Pending:
        """The next operation is handed over now; of a message of this step with this packed name."""
        self.enqueued += 1
        self.enqueued_at_ns = now_ns()
        entry = Pending(self.enqueued, operation, step=step, message=message, posted_at_ns=self.enqueued_at_ns)
        self.pending.append(entry)
        return entry

    def poll(self, done: Callable[[Any], bool]) -> None:
        """Move the frontier past all that has happened, in order. `done` says whether the device passed a mark."""
        while self.pending:
            entry = self.pending[0]
            if entry.begin is None or done(entry.begin):
                self.started = entry.sequence
            if not _completed(entry, done):
                return
            self.started = self.completed = entry.sequence
            self.completed_at_ns = now_ns()
            self.pending.popleft()

    def message(self) -> trace_pb2.Frontier:
        oldest = next(iter(self.pending), None)
        return trace_pb2.Frontier(
            communicator=self.communicator,
            enqueued=self.enqueued,
            started=self.started,
            completed=self.completed,
            enqueued_at_ns=self.enqueued_at_ns,
            completed_at_ns=self.completed_at_ns,
            operation=NAMES[oldest.operation] if oldest else "",
            peer=self.peer,
            sending=self.sending,
            open=[
                trace_pb2.OpenMessage(step=entry.step, message=entry.message, posted_at_ns=entry.posted_at_ns)
                for entry in list(self.pending)[:MAX_OPEN]
                if entry.message != NO_MESSAGE
            ],
        )


def _completed(entry: Pending, done: Callable[[Any], bool]) -> bool:
    if entry.end is not None:
        return done(entry.end)
    return entry.finished is not None and entry.finished()


def finished_of(handle: Any) -> Callable[[], bool]:
    """Asks an asynchronous operation's handle, without keeping it and its tensors alive. Once it is gone nobody can
    wait for the operation, and it counts as finished."""
    reference = weakref.ref(handle)

    def finished() -> bool:
        alive = reference()
        return alive is None or bool(alive.is_completed())

    return finished


class Frontiers:
    """All tracks of the rank."""

    def __init__(self, done: Callable[[Any], bool]) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._tracks: dict[tuple[int, int, bool], Track] = {}

    def track(self, communicator: int, peer: int = -1, sending: bool = False) -> Track:
        """The track of a communicator, or of a directed pair. For the training thread."""
        key = (communicator, peer, sending)
        track = self._tracks.get(key)
        if track is None:
            track = Track(*key)
            with self._lock:
                self._tracks[key] = track
        return track

    def enqueue(self, track: Track, operation: int, step: int, message: int) -> Pending:
        """A message is handed over now. Returns what `complete` and `complete_at` want."""
        return track.enter(operation, step, message)

    def complete(self, track: Track, ticket: Pending) -> None:
        """It is through."""
        ticket.finished = lambda: True

    def complete_at(self, track: Track, ticket: Pending, mark: Any) -> None:
        """It is through when the device has passed this mark."""
        ticket.end = mark

    def poll(self) -> None:
        """From side threads."""
        with self._lock:
            for track in self._tracks.values():
                track.poll(self._done)

    def messages(self) -> list[trace_pb2.Frontier]:
        self.poll()
        with self._lock:
            return [track.message() for track in self._tracks.values()]
