"""Native calls that end by SIGKILL alone, as NCCL's with a dead rank do."""

from __future__ import annotations

import ctypes


def stuck() -> None:
    """Waits for a lock that this thread holds: without the interpreter's lock, and signals don't wake it."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
