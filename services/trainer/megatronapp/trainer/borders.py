"""Borders: what all ranks do after the same step when one of them is asked to: end, or let the plug-ins in.

No collective is needed. A rank that is asked writes "after the next step" to the store. No rank can finish the next
step before this one has taken part in it, so all of them read the same when they come to its end; whoever is asked in
the same step adds to what is written. A wish that another rank's overwrote all the same, as both had read before either
wrote, stays with its rank and is written again after that. Each border has a key of its own, as some ranks still read
it when others have gone on.
"""

from __future__ import annotations

import signal
import threading
from enum import IntFlag
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger

if TYPE_CHECKING:
    from typing import Self

log = get_logger(__name__)


class Border(IntFlag):
    NOTHING = 0
    PLUGINS = 1
    """The plug-ins' `border` is called."""
    STOP = 2
    """Training ends, with a checkpoint."""


class Borders:
    """SIGTERM asks for STOP, plug-ins ask for PLUGINS by `request`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked = Border.NOTHING
        self._lock = threading.RLock()  # a signal may come while the same thread holds it
        self._held = 0
        self._ending = False
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

    def request(self) -> None:
        """Let all ranks come to a border soon. From any thread; asked several times before it comes, it is one."""
        self._ask(Border.PLUGINS)

    def request_stop(self) -> None:
        """Let all ranks end soon, as SIGTERM does. From any thread."""
        self._ask(Border.STOP)

    def stopping(self) -> bool:
        """Whether this rank was asked to end, or the border at which all do is here."""
        return self._ending or Border.STOP in self._asked

    def after(self, step: int) -> Border:
        """What follows this step. Every rank asks once at the end of every step; unless something is asked for, that is
        one look into the store. Raises TrainingError where the store is gone."""
        try:
            return self._after(step)
        except DistError as error:
            raise TrainingError(
                "the ranks' store does not answer: the process that holds it, the launcher or rank 0, has ended"
            ) from error

    def _after(self, step: int) -> Border:
        key = f"border/{self._held}"
        at, wanted = step + 1, Border.NOTHING
        if self._store.check([key]):
            written = self._store.get(key).decode().split()
            at, wanted = int(written[0]), Border(int(written[1]))
            if step >= at:
                self._held += 1
                return self._granted(wanted)
        asked = self._asked & ~wanted
        if asked:
            if Border.STOP in asked:
                log.info("stopping", after_step=at)
            self._store.set(key, f"{at} {int(wanted | asked)}")
        return Border.NOTHING

    def _ask(self, what: Border) -> None:
        with self._lock:
            self._asked |= what

    def _granted(self, border: Border) -> Border:
        with self._lock:
            self._asked &= ~border
        self._ending |= Border.STOP in border
        return border

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ask(Border.STOP)
