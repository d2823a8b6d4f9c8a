"""Ending all ranks after the same step when one of them is asked to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from torch._C._distributed_c10d import Store

from megatronapp.core.logging import get_logger

log = get_logger(__name__)

_KEY = "stop_after"


class StopSignal:
    """SIGTERM, agreed upon by all ranks without a collective.

    A rank that has got the signal writes "stop after the next step" to the store. No rank can finish the next step
    before this one has taken part in it, so all of them read the same when they come to its end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._received = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received = True

    def after(self, step: int) -> bool:
        """Whether this step is the last. Every rank asks at the end of every step."""
        if self._store.check([_KEY]):
            return step >= int(self._store.get(_KEY))
        if self._received:
            log.info("stopping", reason="SIGTERM", after_step=step + 1)
            self._store.set(_KEY, str(step + 1))
        return False
