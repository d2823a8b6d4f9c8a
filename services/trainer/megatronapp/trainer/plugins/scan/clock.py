"""The rank's clocks. All times of a rank are on its monotonic clock."""

from __future__ import annotations

import time
from pathlib import Path

now_ns = time.monotonic_ns
cpu_ns = time.thread_time_ns
"""CPU time of the calling thread."""


class ThreadClock:
    """CPU time and run-queue wait of another thread of this process, as far as the kernel tells."""

    def __init__(self, ident: int, native_id: int) -> None:
        self._clock = time.pthread_getcpuclockid(ident)
        self._schedstat = Path(f"/proc/self/task/{native_id}/schedstat")

    def read(self) -> tuple[int, int]:
        """(CPU time, run-queue wait) in ns since the thread began; 0 where unknown."""
        try:
            _, wait, _ = self._schedstat.read_text().split()
        except (OSError, ValueError):
            wait = "0"
        try:
            return time.clock_gettime_ns(self._clock), int(wait)
        except OSError:
            return 0, int(wait)
