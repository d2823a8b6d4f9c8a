"""Engines in a forked child, such as a data loader's worker: they stay the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

from megatronapp.rdma.errors import EngineClosedError

FORKED = "this process is a fork of the one that made the engine: make one of its own"


class LeftToParent(Protocol):
    def leave_to_parent(self) -> None:
        """Called in the child, which has none of the parent's threads."""


class ForkedEngine:
    """In place of the native engine, none of whose threads a fork has, and whose locks may be held for ever."""

    def __getattr__(self, name: str) -> Any:
        raise EngineClosedError(FORKED)


_engines: weakref.WeakSet[LeftToParent] = weakref.WeakSet()


def watch(engine: LeftToParent) -> None:
    """Let it know of forks as long as it lives."""
    _engines.add(engine)


def _after_fork() -> None:
    for engine in list(_engines):
        engine.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
