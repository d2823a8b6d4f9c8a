"""Progress of each communicator and each directed p2p pair: what was enqueued, started and completed last."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megatronapp.trainer.plugins.scan.clock import now_ns
from megatronapp.trainer.plugins.scan.operations import NAMES
from megatronapp.v1 import trace_pb2


@dataclass(slots=True)
class _Pending:
    sequence: int
    operation: int
    started: Callable[[], bool] | None = None
    completed: Callable[[], bool] | None = None


@dataclass(slots=True)
class Track:
    """One communicator's (peer < 0) or directed pair's operations on this rank, counted from 1.

    The training thread enters and leaves operations; the heartbeat polls what is on its way on the device.
    """

    communicator: int
    peer: int = -1
    sending: bool = False
    enqueued: int = 0
    started: int = 0
    completed: int = 0
    enqueued_at_ns: int = 0
    completed_at_ns: int = 0
    pending: deque[_Pending] = field(default_factory=deque)

    def enter(self, operation: int) -> _Pending:
        """The next operation is handed over now."""
        self.enqueued += 1
        self.enqueued_at_ns = now_ns()
        entry = _Pending(self.enqueued, operation)
        self.pending.append(entry)
        return entry

    def poll(self) -> None:
        """Move the frontier past all that has happened, in order."""
        while self.pending:
            entry = self.pending[0]
            if entry.started is None or entry.started():
                self.started = max(self.started, entry.sequence)
            if entry.completed is None or not entry.completed():
                return
            self.started = self.completed = entry.sequence
            self.completed_at_ns = now_ns()
            self.pending.popleft()

    def message(self) -> trace_pb2.Frontier:
        oldest = self.pending[0].operation if self.pending else -1
        return trace_pb2.Frontier(
            communicator=self.communicator,
            enqueued=self.enqueued,
            started=self.started,
            completed=self.completed,
            enqueued_at_ns=self.enqueued_at_ns,
            completed_at_ns=self.completed_at_ns,
            operation=NAMES[oldest] if oldest >= 0 else "",
            peer=self.peer,
            sending=self.sending,
        )


class Frontiers:
    """All tracks of the rank. Tracks are made by the training thread and polled by side threads."""

    def __init__(self, done: Callable[[Any], bool]) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._tracks: dict[tuple[int, int, bool], Track] = {}

    def track(self, communicator: int, peer: int = -1, sending: bool = False) -> Track:
        key = (communicator, peer, sending)
        track = self._tracks.get(key)
        if track is None:
            with self._lock:
                track = self._tracks[key] = Track(*key)
        return track

    def leave(self, track: Track, entry: _Pending, begin: Any, end: Any) -> None:
        """The call has returned: the operation starts and completes as the device passes these marks."""
        done = self._done
        entry.started = lambda: done(begin)
        entry.completed = lambda: done(end)

    def poll(self) -> None:
        with self._lock:
            for track in list(self._tracks.values()):
                track.poll()

    def messages(self) -> list[trace_pb2.Frontier]:
        self.poll()
        return [track.message() for track in list(self._tracks.values())]
