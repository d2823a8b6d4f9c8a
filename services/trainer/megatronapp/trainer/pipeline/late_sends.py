"""Sends that are handed over some time after they were posted, while the rank that posted them goes on: late messages.

They are faults, or a benchmark's. A message that waits here holds no other up, and neither end's work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from sched import scheduler
from typing import Generic, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.0005
"""Between two looks at whether a device has made what is sent."""


class LateSends(Generic[T]):
    """One thread, which is started by the first late message and ends when none is left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due = scheduler(time.monotonic, self._sleep)
        self._under_way: list[Future[T]] = []
        self._running = False

    def add(self, seconds: float, send: Callable[[], T], made: Callable[[], bool] = lambda: True) -> Future[T]:
        """Call `send` so much later than `made` says that what it sends is there, which must not be changed until then.
        Returns its result to be."""
        sent: Future[T] = Future()

        def count() -> None:
            try:
                there = made()
            except Exception as error:  # noqa: BLE001  (raised in the thread that waits)
                sent.set_exception(error)
                return
            if there:
                self._due.enter(seconds, 0, _fulfil, (sent, send))
            else:
                self._due.enter(LOOK_SECONDS, 0, count)

        with self._changed:
            self._under_way.append(sent)
            self._due.enter(0, 0, count)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="late-sends", daemon=True).start()
            self._changed.notify()
        return sent

    def wait(self) -> None:
        """Until all are handed over. Raises what a send raised."""
        under_way, self._under_way = self._under_way, []
        for sent in under_way:
            sent.result()

    def _sleep(self, _: float) -> None:
        """Until the next one is due, or one is added that may be due earlier."""
        with self._changed:
            if self._due.queue:
                self._changed.wait(max(0.0, self._due.queue[0].time - time.monotonic()))

    def _run(self) -> None:
        while True:
            self._due.run()
            with self._changed:
                if self._due.empty():
                    self._running = False
                    return


def _fulfil(sent: Future[T], send: Callable[[], T]) -> None:
    try:
        sent.set_result(send())
    except Exception as error:  # noqa: BLE001  (raised in the thread that waits)
        sent.set_exception(error)
