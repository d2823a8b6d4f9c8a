"""A gateway in a process of its own, which can be killed, and another one in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port


@dataclass(frozen=True)
class Ports:
    """Of a gateway, and of the one that follows it."""

    http: int = field(default_factory=free_port)
    grpc: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)

    @property
    def for_ranks(self) -> str:
        return f"127.0.0.1:{self.grpc}"


@contextmanager
def gateway_process(ports: Ports, folder: Path, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """Until the block ends, or somebody kills it. `settings`: of the gateway, by name."""
    given = {
        "PORT": ports.http,
        "GRPC_PORT": ports.grpc,
        "HTTP_PORT": ports.metrics,
        "SCOPE_RECORDINGS_DIR": folder,
        **settings,
    }
    environment = {f"MEGATRONAPP_GATEWAY_{name}": str(value) for name, value in given.items()}
    process = subprocess.Popen([sys.executable, "-m", "megatronapp.gateway"], env={**os.environ, **environment})
    try:
        _wait_for(ports.grpc, process)
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(2400):
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "the gateway did not start"
        time.sleep(0.05)
    raise AssertionError("the gateway did not start")
