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
from typing import NoReturn

INTERRUPTED = 130


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
