"""The rank's clocks. All times of a rank are on its monotonic clock."""

from __future__ import annotations

import time

now_ns = time.monotonic_ns
cpu_ns = time.thread_time_ns
"""CPU time of the calling thread."""
