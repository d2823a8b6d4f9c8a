"""Messages that a rank waits for, and what is said of one that takes long: who waits for whom, and for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from megatronapp.trainer.plugins.fbd.roles import Place

if TYPE_CHECKING:
    from megatronapp import rdma

SLICE_SECONDS = 0.25
"""While a rank waits for one of its twins it looks so often whether another is lost."""
LONG_SECONDS = 30.0
"""A wait that is told of."""


class Kind(IntEnum):
    """Of a tag; up to 4 they are the engine's own."""

    GO = 5
    WEIGHTS = 6
    INPUT = 7
    LINEARS = 8
    LAYER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A message on its way. `of`: the tag's fields that name it within its kind."""

    handle: rdma.Handle
    kind: Kind
    twin: Place
    twin_rank: int
    sends: bool
    of: dict[str, int]

    def done(self) -> bool:
        return self.handle.done()

    def __str__(self) -> str:
        """What this rank waits for, and from whom."""
        what = self.kind.name.lower()
        fields = ", ".join(f"{name} {number}" for name, number in self.of.items())
        twin = f"rank {self.twin_rank} ({self.twin})"
        named = f"{what} ({fields})" if fields else what
        return f"{twin} to take {named}" if self.sends else f"{named} from {twin}"


def wait(
    pending: Pending, timed_out: type[Exception], check: Callable[[], Any], tell_long: Callable[[Pending], None]
) -> None:
    """Until it has ended. `check` raises where another twin is lost. `tell_long` is called once, after LONG_SECONDS."""
    began, is_told = time.monotonic(), pending.kind is Kind.GO  # which comes when it comes
    while True:
        ended = pending.handle.done()  # before the wait: it may end between its slice's end and a look at it
        try:
            pending.handle.wait(SLICE_SECONDS)
        except timed_out:
            if ended:
                raise
            check()
        else:
            return
        if not is_told and time.monotonic() - began >= LONG_SECONDS:
            is_told = True
            tell_long(pending)
