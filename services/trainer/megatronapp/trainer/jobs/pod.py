"""torchrun as a pod's first process: ends with the rank's exit code, and lets the ranks save when the pod must go.

Kubernetes sends SIGTERM to this process alone. torchrun would give its ranks 30 s and end with 1; here the ranks are
asked and waited for, as long as the pod's grace period lasts, and the exit code says that the work is not done.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

import psutil

from megatronapp.trainer.jobs.torchrun import launch

ASKED_TO_STOP = 128 + signal.SIGTERM
NODE_RANK, FIRST_NODE_RANK = "PET_NODE_RANK", "MEGATRONAPP_FIRST_NODE_RANK"


class Stop:
    """SIGTERM, handed to the ranks; without ranks yet there is nothing to save."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        ranks = psutil.Process().children()
        if not ranks:
            os._exit(ASKED_TO_STOP)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)


def node_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variable, where this pod's Job has not the job's first nodes: a Job counts its own pods alone."""
    if not environ.get(FIRST_NODE_RANK):
        return {}
    return {NODE_RANK: str(int(environ[FIRST_NODE_RANK]) + int(environ[NODE_RANK]))}


def run(argv: list[str]) -> int:
    """Run torchrun with `argv`. Returns the exit code of the rank that failed, 143 after SIGTERM."""
    # The first process of a pod has no default handlers: without this one SIGTERM would be lost while torch loads.
    stop = Stop()
    os.environ.update(node_rank(os.environ))
    code = launch(["--signals-to-handle=SIGINT", *argv])
    return ASKED_TO_STOP if stop.asked else code


if __name__ == "__main__":
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
