"""`python -m megatronapp.trainer.agent`: the agent of a node that no launcher serves. A rank starts it."""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from megatronapp.core import logging
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.app import Agent

LINGER_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m megatronapp.trainer.agent", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process that it outlives only as long as it must")
    parser.add_argument("--listen", type=int, required=True, help="descriptor of a listening Unix socket")
    parser.add_argument("--path", type=Path, required=True, help="its address, removed at the end")
    options = parser.parse_args(argv)
    logging.configure()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the ranks, which save first
    listener = socket.socket(fileno=options.listen)
    agent = Agent(listener, options.path, Access.of_environment())
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    agent.run(_gone(options.parent))
    return 0


def _gone(pid: int) -> Callable[[], bool]:
    """Whether the process ended a moment ago: other ranks may be about to connect just then."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return lambda: True
    ended_at: list[float] = []

    def gone() -> bool:
        if not ended_at and select.select([process], [], [], 0)[0]:
            ended_at.append(time.monotonic())
        return bool(ended_at) and time.monotonic() - ended_at[0] > LINGER_SECONDS

    return gone


if __name__ == "__main__":
    raise SystemExit(main())
