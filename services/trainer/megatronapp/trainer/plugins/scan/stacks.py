"""The Python stack of a rank that stands still: faulthandler writes it when the agent asks by a signal, whatever the
main thread is in; it needs no interpreter. Of that thread alone, which reads its own frames: others may run meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import signal

from megatronapp.trainer.agent.layout import STACKS_NAME

SIGNAL = signal.SIGRTMAX - 3
"""Nobody else's, as far as is known: libc takes the first ones, and debuggers none of the last."""
_PR_SET_PTRACER = 0x59616D61


class StackFile:
    """Memory into which faulthandler writes, and the signal for it; for the training thread, once in a process."""

    def __init__(self) -> None:
        """Raises OSError without memory."""
        self._fd = os.memfd_create(STACKS_NAME, os.MFD_CLOEXEC)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(SIGNAL, file=self._fd, all_threads=False, chain=False)

    def document(self) -> dict[str, int]:
        """For the hello."""
        return {"signal": SIGNAL, "fd": self._fd}

    def close(self) -> None:
        faulthandler.unregister(SIGNAL)
        os.close(self._fd)


def allow_tracer(pid: int) -> None:
    """The agent, and py-spy that it starts, may look into this process also where Yama keeps siblings apart."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
