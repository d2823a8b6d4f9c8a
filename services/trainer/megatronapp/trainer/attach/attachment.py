"""When a rank is attached, and to what: patches wait for the modules that they are for, and the plug-ins for process
groups.

    a process starts → a module is imported, and patched → process groups exist → Session

A script must never end for us: what fails says so in one line, and the script goes on alone.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from megatronapp.trainer.attach.late_imports import LateImports
from megatronapp.trainer.attach.messages import say, say_once

if TYPE_CHECKING:
    import argparse

    from megatronapp.trainer.attach.session import Session
    from megatronapp.trainer.plugins.base import Degree


class Attachment:
    """A process's. Its session is there from the time on when process groups are."""

    def __init__(self, flags: Callable[[], argparse.Namespace]) -> None:
        """`flags` are read when the rank is attached."""
        self._flags = flags
        self._session: Session | None = None
        self._over = False
        self.settings: dict[str, str] = {}
        """What is known of the model before the session is there, by the names of Megatron-LM's flags."""
        self.late = LateImports(self._not_seen)

    @property
    def session(self) -> Session | None:
        """For the training thread of this process, else None."""
        session = self._session
        return session if session is not None and session.here else None

    def open(self, degree: Degree) -> Session | None:
        """Attach this rank, once; its process groups exist. None: it could not be, or nobody asked."""
        if self._session is None and not self._over:
            self._over = True
            try:
                from megatronapp.trainer.attach.opening import open_session

                self._session = open_session(self._flags(), degree, self.settings)
            except Exception as error:  # noqa: BLE001
                say(f"not attached: {error or type(error).__name__}")
            if self._session is not None:
                atexit.register(self.close)
        return self.session

    def open_now(self) -> Session | None:
        """Attach this rank to what there is: a grid of megatron-core's, else process groups, else nothing yet."""
        import torch.distributed as dist

        from megatronapp.trainer.plugins.base import Degree

        if not dist.is_initialized():
            return None
        grid = sys.modules.get("megatron.core.parallel_state")
        full = grid is not None and grid.model_parallel_is_initialized()
        return self.open(Degree.FULL if full else Degree.COLLECTIVES)

    def close(self) -> None:
        """The rank ends, or leaves its process groups; it is not attached again."""
        if self._session is not None:
            self._session.close()

    def give_up(self, error: Exception) -> None:
        """The script goes on alone."""
        say_once(f"nothing is seen from here on: {type(error).__name__}: {error}")
        try:
            self.close()
        except Exception as another:  # noqa: BLE001
            say_once(f"the trace may be cut: {type(another).__name__}: {another}")

    def _not_seen(self, module: str, error: Exception) -> None:
        say_once(f"what {module} does is not seen: {type(error).__name__}: {error}")


def bind(original: Any, wrapper: Any) -> None:
    """Put the wrapper wherever a module holds the function under its own name."""
    name = original.__name__
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(name) is original:
            setattr(module, name, wrapper)
