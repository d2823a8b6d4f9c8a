"""One line of the first rank's: that it is attached, and how much of the program is seen, once that is known."""

from __future__ import annotations

import threading

from megatronapp.core.trace.values import Identity
from megatronapp.trainer.attach.messages import say
from megatronapp.trainer.plugins.base import Degree

PATIENCE_SECONDS = 30.0
"""A program that has ended no step for so long is told of without."""
SEEN = {
    Degree.FULL: "full: microbatches, messages between stages, collectives, layers, the optimizer, data",
    Degree.STEPS: "steps and collectives: forward and backward passes, the optimizer, data, too; "
    "not what megatron-core's schedules would tell: messages between stages, layers",
    Degree.COLLECTIVES: "collectives alone: no step has ended, so that only a hang can be named",
}


class Announcement:
    """`of_degree` each time that the degree is another; `close` at the end. All silent but for the first rank's."""

    def __init__(self, identity: Identity, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._identity = identity
        self._last: Degree | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(patience_seconds, self._say, [Degree.COLLECTIVES])
        self._timer.daemon = True

    def of_degree(self, degree: Degree) -> None:
        """Of collectives alone nothing is said yet: steps may follow."""
        if self._identity.rank != 0:
            return
        if degree is Degree.COLLECTIVES:
            self._timer.start()
        else:
            self._timer.cancel()
            self._say(degree)

    def close(self, degree: Degree) -> None:
        if self._identity.rank == 0:
            self._timer.cancel()
            self._say(degree)

    def _say(self, degree: Degree) -> None:
        """From the timer's thread as well, which must not speak after the other."""
        with self._lock:
            if self._last in (None, Degree.COLLECTIVES) and degree is not self._last:
                self._last = degree
                whoever = self._identity
                say(f"attached to {whoever.job}, run {whoever.run[:8]}: {SEEN[degree]}")
