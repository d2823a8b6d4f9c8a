"""Progress of each communicator and each directed pair: operations as the hooks see them, told to the recorder.

What nobody has waited for yet is asked after when the next operation begins and at a step's border: no thread of the
rank's does it meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from megatronapp.core.trace.message_id import NO_MESSAGE
from megatronapp.trainer.plugins.scan.recorder import Recorder


class Pending:
    """An operation on its way; `sequence` counts those of its track from 1."""

    __slots__ = ("_end", "_finished", "_frontiers", "_track", "sequence")

    def __init__(self, frontiers: Frontiers, track: int, sequence: int) -> None:
        self._frontiers, self._track = frontiers, track
        self._end: Any = None
        self._finished: Callable[[], bool] | None = None
        self.sequence = sequence

    @property
    def end(self) -> Any:
        """The mark behind the operation, once its call or the wait for it has returned; None before."""
        return self._end

    @end.setter
    def end(self, mark: Any) -> None:
        self._end, self._finished = mark, None
        self._frontiers.recorder.complete_at(self._track, self.sequence, mark)

    @property
    def finished(self) -> Callable[[], bool] | None:
        """Tells of an asynchronous operation nobody has waited for yet."""
        return self._finished

    @finished.setter
    def finished(self, ask: Callable[[], bool]) -> None:
        self._finished = ask
        self._frontiers.unwaited.append(self)

    def poll(self) -> bool:
        """Whether there is nothing more to ask."""
        if self._finished is None:
            return True
        if self._finished():
            self.complete()
            return True
        return False

    def complete(self) -> None:
        """It is through, whoever may wait for it later."""
        self._finished = None
        self._frontiers.recorder.complete(self._track, self.sequence)


class Track:
    """One communicator's (peer < 0) or directed pair's operations on this rank."""

    __slots__ = ("_frontiers", "_index", "communicator")

    def __init__(self, frontiers: Frontiers, index: int, communicator: int) -> None:
        self._frontiers, self._index = frontiers, index
        self.communicator = communicator

    def enter(self, operation: int, step: int = 0, message: int = NO_MESSAGE) -> Pending:
        """The next operation is handed over now; of a message of this step with this packed name, of a collective so
        many elements and its packed call."""
        frontiers = self._frontiers
        frontiers.poll()
        ticket = frontiers.recorder.enqueue(self._index, operation, step, message)
        frontiers.recorder.started(self._index)
        return Pending(frontiers, self._index, ticket)


def finished_of(handle: Any) -> Callable[[], bool]:
    """Asks an asynchronous operation's handle, without keeping it and its tensors alive. Once it is gone nobody can
    wait for the operation, and it counts as finished."""
    reference = weakref.ref(handle)

    def finished() -> bool:
        alive = reference()
        return alive is None or bool(alive.is_completed())

    return finished


class Frontiers:
    """All tracks of the rank. For the training thread, or autograd's while that one waits."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.unwaited: list[Pending] = []
        """Asynchronous operations that may have finished without anyone having waited."""
        self._tracks: dict[tuple[int, int, bool], Track] = {}

    def track(self, communicator: int, peer: int = -1, sending: bool = False) -> Track:
        """The track of a communicator, or of a directed pair."""
        key = (communicator, peer, sending)
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = Track(self, self.recorder.track(*key), communicator)
        return track

    def poll(self) -> None:
        """Ask after what nobody has waited for."""
        if self.unwaited:
            self.unwaited = [pending for pending in self.unwaited if not pending.poll()]
