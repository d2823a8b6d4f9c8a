"""`python -m megatronapp.trainer.agent`: the agent of ranks that no launcher of ours serves. The first rank of a node
starts it, or, in a pod of its own image, a container beside it runs it (`--serve`) until it gets SIGTERM."""

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
from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.app import Agent
from megatronapp.trainer.agent.rendezvous import listen

log = get_logger(__name__)

LINGER_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m megatronapp.trainer.agent", description=__doc__)
    parser.add_argument("--serve", type=Path, help="listen at this address until SIGTERM; no other flag is needed then")
    parser.add_argument("--parent", type=int, help="process that it outlives only as long as it must")
    parser.add_argument("--listen", type=int, help="descriptor of a listening Unix socket")
    parser.add_argument("--path", type=Path, help="its address, removed at the end")
    options = parser.parse_args(argv)
    if options.serve is None and None in (options.parent, options.listen, options.path):
        parser.error("give --serve, or --parent, --listen and --path")
    logging.configure()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the ranks, which save first
    if options.serve is not None:
        return _serve(options.serve)
    listener = socket.socket(fileno=options.listen)
    agent = Agent(listener, options.path, Access.of_environment())
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    agent.run(_gone(options.parent))
    return 0


def _serve(path: Path) -> int:
    """Until SIGTERM, which waits from the moment on when somebody may connect."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        listener = listen(path)
    except UnavailableError as error:
        log.error("no_agent", reason=str(error))
        return 1
    if listener is None:
        log.error("no_agent", reason=f"another process listens at {path}")
        return 1
    agent = Agent(listener, path, Access.of_environment())
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    agent.run()
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
