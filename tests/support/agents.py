"""An agent for the ranks of a test, in the test's own process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from megatronapp.trainer.agent.beside import agent_beside
from megatronapp.trainer.agent.meeting import SOCKET_VARIABLE


@contextmanager
def agent() -> Iterator[dict[str, str]]:
    """What the ranks' environment must hold. At the end everything they have left is read and sent."""
    with agent_beside():
        yield {SOCKET_VARIABLE: os.environ[SOCKET_VARIABLE]}
