"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that nobody listens on, below those that the kernel gives to outgoing connections and to listeners that name
    none: another process can't be given it before the server is there."""
    beyond = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(FIRST, max(beyond, FIRST + 5_000))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
