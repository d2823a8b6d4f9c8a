"""An agent for the ranks of a test, in the test's own process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from megatronapp.trainer.agent.embedded import embedded_agent
from megatronapp.trainer.agent.rendezvous import SOCKET_VARIABLE


@contextmanager
def agent() -> Iterator[dict[str, str]]:
    """What the ranks' environment must hold. At the end everything they have left is read and sent."""
    with embedded_agent():
        yield {SOCKET_VARIABLE: os.environ[SOCKET_VARIABLE]}
