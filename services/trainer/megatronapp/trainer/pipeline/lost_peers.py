"""Ends a rank that waits for a lost one where no error reaches it: within NCCL or CUDA, or for the store of a host that
is stopped.

There a rank hears no signal of Python's, and of a peer's death only when NCCL's own time is over, in minutes. The
engine's thread knows at once: its socket closes, or nothing more is heard. So a thread looks there, gives the rank's
own code time to find out, and ends the process if that does not. Its launcher then ends the others of its host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from megatronapp.core.errors import TrainingError
from megatronapp.trainer import rank_exit

LOOK_SECONDS = 0.2
GRACE_SECONDS = 1.0
"""In which a rank that is not stuck finds out by itself, and says more."""


class LostPeers:
    """`lost`: which ranks are lost, and why, as far as the engine knows by now; "" for none."""

    def __init__(self, lost: Callable[[], str]) -> None:
        self._lost = lost
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="lost-peers", daemon=True).start()

    def stop(self) -> None:
        """The rank ends, or has found out."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if (lost := self._lost()) and not self._stopped.wait(GRACE_SECONDS):
                rank_exit.end_at_once(TrainingError(lost))
