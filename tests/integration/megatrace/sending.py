"""What ranks that train send by RDMA, as Megatrace's NCCL would write it."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import ClassVar, Self

from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.integration.megatrace.support import CULPRIT
from tests.support.work_requests import OpenPort, SendingPort

FOLDER = "TELEMETRY"
"""The variable that names where the ports' files are."""
SENDS = 100
"""Of a rank in a step."""


class SendsByRdma(Plugin):
    """A port of each rank."""

    name: ClassVar[str] = "sends_by_rdma"

    def __init__(self, rank: int, world: int) -> None:
        port = SendingPort(f"mlx5_{rank}", place=rank, peer=(rank + 1) % world)
        self.rdma, self.broken = OpenPort(Path(os.environ[FOLDER]), port), rank == CULPRIT

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls(context.identity.rank, context.placement.sizes.world)

    def step_begin(self, step: int) -> None:
        self.rdma.send(SENDS, at_ns=time.time_ns())

    def close(self) -> None:
        self.rdma.close()


def write_telemetry(folder: Path) -> None:
    """From now on, in this rank, and its agent reads it."""
    os.environ |= {"NCCL_TELEMETRY_ENABLE": "1", FOLDER: str(folder)}
