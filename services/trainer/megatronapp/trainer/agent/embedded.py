"""An agent beside a launcher's own work: a thread of its process.

A thread, and no process of its own: it outlives the ranks because the launcher does, it ends with the launcher and
can't be left behind, and a pod has one process fewer to pay for. The launcher only sleeps while its ranks run, so that
the two don't take the interpreter from each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.rendezvous import SOCKET_VARIABLE, listen, private_folder

log = get_logger(__name__)

STOP_SECONDS = 5.0


@contextmanager
def embedded_agent() -> Iterator[None]:
    """Serve the ranks that are started within; at the end read and send what they have left, for about two seconds.

    The ranks find it by their environment, which is this process's. Where no socket can be made they are left to find
    one themselves.
    """
    from megatronapp.trainer.agent.app import Agent

    os.environ.pop(SOCKET_VARIABLE, None)
    try:
        folder = private_folder()
        listener = listen(folder / "agent.sock")
    except UnavailableError as error:
        log.warning("no_agent", reason=str(error))
        yield
        return
    assert listener is not None  # noqa: S101  (nobody else knows the folder)
    agent = Agent(listener, folder / "agent.sock", Access.of_environment())
    thread = threading.Thread(target=agent.run, name="agent", daemon=True)
    thread.start()
    os.environ[SOCKET_VARIABLE] = str(folder / "agent.sock")
    try:
        yield
    finally:
        agent.stop()
        thread.join(STOP_SECONDS)
        os.environ.pop(SOCKET_VARIABLE, None)
        with suppress(OSError):  # a thread that failed, or still sends, has left its socket in it
            folder.rmdir()
