"""What is done to a rank from outside, which no fault injector can do to itself: it is stopped, or its GPU gets a
neighbour."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from bench.corpus.case import Injected
from megatronapp.core.scenario import FaultKind, HangSide
from tests.faults.cases import Case

OCCUPY = "occupy"
"""A file: the neighbour begins once it is there. Its process is, from the beginning: to start one takes seconds."""
POLL_SECONDS = 0.05


class Deed(StrEnum):
    STOP = "stop"
    NEIGHBOUR = "neighbour"


@dataclass(frozen=True)
class FromOutside(Case):
    """The scenario is empty: the rank knows of nothing."""

    deed: Deed
    rank: int

    @property
    def clean(self) -> bool:
        return False

    def neighbours(
        self, process: type[ForkServerProcess], environment: dict[str, str], folder: Path
    ) -> list[ForkServerProcess]:
        """Processes to start beside the ranks."""
        if self.deed is not Deed.NEIGHBOUR:
            return []
        arguments = (self.rank, environment, folder / OCCUPY)
        return [process(target=occupy, args=arguments, daemon=True)]

    def do(self, ranks: Sequence[ForkServerProcess], folder: Path, step: int) -> Injected:
        """In a step that has not ended yet."""
        begun, pid = time.time_ns(), ranks[self.rank].pid
        if self.deed is Deed.STOP and pid is not None:
            os.kill(pid, signal.SIGSTOP)
            kind, side = FaultKind.HANG, HangSide.HOST
        else:
            (folder / OCCUPY).touch()
            kind, side = FaultKind.SLOW_COMPUTE, None
        return Injected(kind=kind, ranks=(self.rank,), from_step=step, side=side, begun_unix_ns=begun)


def occupy(device: int, environment: dict[str, str], begin: Path) -> None:
    """`megatronapp interfere` on a GPU, from when a file is there until it is killed."""
    os.environ.update(environment)
    import torch

    from megatronapp.trainer import interfere

    torch.zeros(1, device=f"cuda:{device}")
    while not begin.exists():
        time.sleep(POLL_SECONDS)
    interfere.main(["--device", str(device), "--duration", "0"])
