"""A checkpoint that is served with MegaScope by forked ranks, as `mode: serve` does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.agents import agent
from tests.support.forked import run_forked


def serve(folder: Path, flags: str, pids: Path) -> None:
    """For a rank."""
    from megatronapp.trainer.generate import serve
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scope import ScopePlugin

    (pids / os.environ["RANK"]).write_text(str(os.getpid()))
    serve.run(["--serve", "--load", str(folder), "--scope", *flags.split()], plugins=(ScanPlugin, ScopePlugin))


@contextmanager
def served_model(ranks: int, folder: Path, flags: str, pids: Path, environment: dict[str, str]) -> Iterator[None]:
    """The body's end ends one rank by SIGTERM, and with it all; each must end well."""
    with agent() as with_agent, ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            run_forked, ranks, serve, folder, flags, pids, environment={**with_agent, **environment}, timeout=110
        )
        try:
            yield
        finally:
            last = pids / str(ranks - 1)
            if last.exists() and not done.done():
                os.kill(int(last.read_text()), signal.SIGTERM)
        done.result()
