"""Ends a rank that can't be told of a lost twin: the store of a stopped host, or a collective, raises nothing."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

POLL_SECONDS = 0.2
GRACE_SECONDS = 0.75
"""In which a rank that waits for its twins finds by itself that one is lost."""


class Watch:
    """lost: says which twins are lost, "" for none."""

    def __init__(self, lost: Callable[[], str]) -> None:
        self._lost = lost
        self._over = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, name="fbd-watch", daemon=True).start()

    def end(self) -> None:
        """The rank ends by itself."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if lost := self._lost():
                if not self._over.wait(GRACE_SECONDS):
                    end_process(lost)
                return


def end_process(reason: str) -> None:
    """At once: its main thread waits for what nobody answers."""
    log.error("fbd_ends", reason=reason)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(TrainingError.exit_code)
