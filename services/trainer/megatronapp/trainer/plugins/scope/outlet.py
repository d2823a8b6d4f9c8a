"""The way of packed frames into the ring: in parts that it takes, and no faster than its reader comes round.

A ring overwrites what was not read in time, and the agent looks at it every few milliseconds. What one step shows may
be more than the ring holds: it waits here, and goes in at the flushes that follow. The training thread never waits for
a reader, but for what is shown last before it stands still.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from megatronapp.trainer.agent.layout import FRAME_PART
from megatronapp.trainer.plugins.scope.flags import FRAME_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

PART_BYTES = 1 << 20
MAX_WAITING_BYTES = 128 << 20
AT_ONCE_BYTES = FRAME_BYTES // 2
"""That are written before the reader has come round."""
READ_SECONDS = 0.1
"""In which it has surely come round: a few times what it takes."""
LEAST_SLEEP_SECONDS = 1e-3


class Outlet:
    """For one thread."""

    def __init__(
        self,
        write: Callable[[bytes, Buffer], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`write` takes a part's descriptor and its bytes; it may raise ValueError."""
        self._write = write
        self._clock, self._sleep = clock, sleep
        self._parts: deque[tuple[bytes, memoryview]] = deque()
        self._bytes = 0
        self._room = float(AT_ONCE_BYTES)
        self._at = clock()

    def put(self, tap: int, payload: bytes | memoryview, head: bytes = b"") -> bool:
        """Line a frame up, which begins with `head`, shorter than a part; False: too much waits already. Views of the
        payload are kept: it must stay as it is."""
        size = len(head) + len(payload)
        if self._bytes + size > MAX_WAITING_BYTES:
            return False
        view, room = memoryview(payload), PART_BYTES - len(head)
        first = memoryview(b"".join((head, view[:room]))) if head else view[:room]
        parts = [first, *(view[start : start + PART_BYTES] for start in range(room, len(view), PART_BYTES))]
        self._parts.extend((FRAME_PART.pack(tap, number, len(parts)), part) for number, part in enumerate(parts))
        self._bytes += size
        return True

    def flush(self, *, wait: bool = False) -> None:
        """Write what there is room for; `wait`: all of it, as room comes. Raises ValueError where the ring takes
        nothing; then nothing waits any more."""
        try:
            while self._parts:
                missing = len(self._parts[0][1]) - self._refilled()
                if missing > 0:
                    if not wait:
                        return
                    self._sleep(max(missing / AT_ONCE_BYTES * READ_SECONDS, LEAST_SLEEP_SECONDS))
                    continue
                descriptor, part = self._parts.popleft()
                self._bytes -= len(part)
                self._room -= len(part)
                self._write(descriptor, part)
        except ValueError:
            self._parts.clear()
            self._bytes = 0
            raise

    def _refilled(self) -> float:
        now = self._clock()
        self._room = min(self._room + (now - self._at) / READ_SECONDS * AT_ONCE_BYTES, AT_ONCE_BYTES)
        self._at = now
        return self._room
