"""How the process of a rank ends: with its exit code.

PyTorch's worker threads take the interpreter's lock to let go of what Python holds, too. When one does so while the
interpreter ends, Python before 3.14 ends that thread inside C++, which aborts the process: "terminate called without
an active exception", SIGABRT. A script of ten lines with DistributedDataParallel over gloo ends so once in 20 to 50
times on a busy machine, also after `destroy_process_group()`. A run that went well would count as failed and be
repeated. So the interpreter is not taken down: all that was registered for its end runs, then the process ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from megatronapp.core.errors import MegatronAppError

INTERRUPTED = 130
TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads what a pod says of its end (its default terminationMessagePath)."""


def leave_reason(text: str) -> None:
    """In a pod: from whichever rank fails first, as torchrun ends the others and has the last word in the log."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):
            TERMINATION_LOG.write_text(text)


def end_at_once(error: MegatronAppError) -> NoReturn:
    """From any thread, of a process whose main thread can't be brought to an end. Nothing that was registered runs."""
    leave_reason(f"error: {error}")
    with suppress(OSError):
        os.write(2, f"error: {error}\n".encode())  # no lock that a stuck thread may hold
    os._exit(error.exit_code)


class RankExit:
    """Made before torch is imported: what is registered first runs last."""

    def __init__(self) -> None:
        self._code = 1
        atexit.register(self._end)

    def run(self, main: Callable[[], int]) -> NoReturn:
        """`main`, then the end of the process with the code that it returned or exited with, 1 after an error."""
        try:
            sys.exit(main())
        except SystemExit as end:
            self._code = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        except KeyboardInterrupt:
            self._code = INTERRUPTED
            raise

    def _end(self) -> None:
        logging.shutdown()  # registered by its import, before this
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # who reads is gone, it is closed, there is none
                stream.flush()
        os._exit(self._code)
