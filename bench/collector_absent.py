"""Does training notice whether the platform is there? Step times with the collector up, killed (kill -9) and up again.

    python -m bench.collector_absent                  # one process, a small model
    torchrun --nproc-per-node 2 -m bench.collector_absent --preset 1b-wide --steps 60 --use-distributed-optimizer

Blocks of 10 steps alternate within one run; before a block of "up" the collector is started and answers, before one of
"killed" it is killed. Every step is traced in detail. The result is the mean paired difference of block medians, killed
less up, with its 95 % interval. Unknown flags go to the trainer.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bench import _blocks
from bench._blocks import Blocks, Timings

BLOCKS = Blocks(modes=("up", "killed"), settling=2)
START_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    return _blocks.main("collector_absent", __doc__, BLOCKS, run, argv)


class SwitchedCollector:
    """`python -m megatronapp.collector` on fixed ports, over one folder."""

    def __init__(self, folder: Path) -> None:
        self.port, http_port = _free_port(), _free_port()
        self._environment = os.environ | {
            "MEGATRONAPP_COLLECTOR_GRPC_PORT": str(self.port),
            "MEGATRONAPP_COLLECTOR_HTTP_PORT": str(http_port),
            "MEGATRONAPP_COLLECTOR_DATA_DIR": str(folder),
            "MEGATRONAPP_COLLECTOR_LOG_LEVEL": "error",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def switch(self, *, up: bool) -> None:
        """Start it and wait until it listens, or kill it."""
        if up and self._process is None:
            self._process = subprocess.Popen([sys.executable, "-m", "megatronapp.collector"], env=self._environment)
            deadline = time.monotonic() + START_SECONDS
            while not _listens(self.port):
                if time.monotonic() > deadline:
                    raise SystemExit("the collector did not start")
                time.sleep(0.05)
        elif not up and self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def run(flags: Sequence[str], blocks: Blocks) -> dict[str, Any] | None:
    """Train, switching the collector at block borders. The report is the first rank's."""
    from megatronapp.trainer.launch import run as train
    from megatronapp.trainer.plugins.base import PluginContext
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scan.flags import ScanSettings
    from megatronapp.trainer.plugins.scan.window import Window

    timings = Timings(blocks)
    facts: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="collector-absent-"))
    first = os.environ.get("RANK", "0") == "0"
    collector = SwitchedCollector(folder) if first else None

    class WatchedScan(ScanPlugin):
        """The plug-in; times each step from its begin to the next one's, on the first rank."""

        _began = 0.0

        @classmethod
        def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
            port = _agreed(collector.port if collector else 0)
            facts.update(world=context.placement.sizes.world, device=context.device.type)
            window = Window(enabled=True, interval=1, continuous=1)
            return cls(ScanSettings(window, None, f"127.0.0.1:{port}"), context)

        def step_begin(self, step: int) -> None:
            now = time.perf_counter()
            if step > 1:
                timings.add(step - 1, now - self._began)
            if collector is not None:
                collector.switch(up=blocks.mode_of(step)[0] == "up")
            self._began = time.perf_counter()
            super().step_begin(step)

    try:
        train(flags, plugins=[WatchedScan])
    finally:
        if collector is not None:
            collector.switch(up=False)
    if not first:
        return None
    killed = timings.against_first("killed")
    return {**facts, "step_seconds_up": round(timings.usual_seconds(), 6), "killed": killed}


def _agreed(port: int) -> int:
    """The first rank's port, on all ranks."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return port
    ports = [port]
    dist.broadcast_object_list(ports, src=0)
    return ports[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
