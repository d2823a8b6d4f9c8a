"""TCP links between ranks of one host that are as slow as asked for, and keep next to nothing in the kernel."""

from __future__ import annotations

import os
import socket
from typing import Any

SO_MAX_PACING_RATE = 47
"""Of asm-generic/socket.h; Python has no name for it."""
KEPT_BYTES = 16 << 10


def slow_down_links(bytes_per_second: float) -> None:
    """Of engines that this process connects from here on: each peer's, in each direction."""
    from megatronapp.rdma import Engine

    attach = Engine._attach

    def attach_slowly(engine: Engine, link: Any) -> None:
        kept = socket.socket(fileno=os.dup(link.connection.fileno()))
        attach(engine, link)
        kept.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, round(bytes_per_second))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KEPT_BYTES)
        kept.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KEPT_BYTES)
        kept.close()

    setattr(Engine, "_attach", attach_slowly)  # noqa: B010
