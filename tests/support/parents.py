"""Processes that end with who forked them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal

F_SETSIG = 10


def end_with_parent() -> None:
    """Of a fork of multiprocessing's server, once its parent is gone, however that ended: the parent's end of a pipe is
    closed then, and the kernel signals that to its reader, also where that one is stopped."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(parent.sentinel, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
