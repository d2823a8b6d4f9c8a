"""Condition: whether journal and store can be written, and whether the loop and the disk are at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

STALLED_SECONDS = 10.0
"""A journal's write, or the event loop, that takes longer is not at work."""


class Condition:
    """Told of every write; logs when one is refused for the first time, and when it is taken again."""

    def __init__(self, metrics: CollectorMetrics) -> None:
        self.journal_ok = True
        self.store_ok = True
        self._metrics = metrics
        self._writing_since: float | None = None
        self._ticked = time.monotonic()

    @property
    def good(self) -> bool:
        now = time.monotonic()
        stuck = now - self._ticked > STALLED_SECONDS
        slow = self._writing_since is not None and now - self._writing_since > STALLED_SECONDS
        return self.journal_ok and self.store_ok and not stuck and not slow

    def tick(self) -> None:
        """The loop has come round."""
        self._ticked = time.monotonic()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A journal's write is under way."""
        self._writing_since = time.monotonic()
        try:
            yield
        finally:
            self._writing_since = None

    def journal(self, *, ok: bool) -> None:
        if ok != self.journal_ok:
            (log.info if ok else log.error)("journal_writable" if ok else "journal_not_writable")
        self.journal_ok = ok
        self._show()

    def store(self, error: str) -> None:
        """`error` is empty where it was written."""
        if bool(error) == self.store_ok:
            log.error("store_not_writable", error=error) if error else log.info("store_writable")
        self.store_ok = not error
        self._show()

    def _show(self) -> None:
        self._metrics.writable.set(self.journal_ok and self.store_ok)
