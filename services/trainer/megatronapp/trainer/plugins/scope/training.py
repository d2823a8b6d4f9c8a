"""Training mode: pause, step, run to a step, resume.

A pause is a lease: it ends by itself when nobody renews it, or when the job is asked to end, so that a viewer who is
gone never holds a job. Rank 0's clock alone says when: no two ranks can differ about it. While it lasts all ranks are
in one border, whose phase heartbeats tell (PHASE_PAUSE): it is no hang, however long it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.plugins.scope.commands import Agreement, Document

DEFAULT_LEASE_SECONDS = 60.0
MAX_LEASE_SECONDS = 3600.0
POLL_SECONDS = 0.05
EXPIRED = "expired"
"""A round's note: the pause is over without a command."""


@dataclass(slots=True)
class TrainControl:
    """What was asked for; the same on all ranks, but for the deadline, which only rank 0 looks at."""

    paused: bool = False
    pause_after: int | None = None
    """The step after which it pauses."""
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    deadline: float = math.inf

    def apply(self, wish: Mapping[str, Any], step: int) -> None:
        """A `ScopeTrainControl` at a border after this step. Raises DataError."""
        what = wish.get("do")
        if what in {"pause", "renew"}:
            self._lease(wish)
            if what == "pause":
                self.paused, self.pause_after = True, None
        elif what == "resume":
            self.paused, self.pause_after = False, None
        elif what in {"step", "run_to"}:
            until = step + max(_whole(wish, "steps"), 1) if what == "step" else _whole(wish, "until_step")
            if until <= step:
                raise DataError(f"run_to {until}: step {step} is done already")
            self._lease(wish)
            self.paused, self.pause_after = False, until
        else:
            raise DataError(f"train {what!r:.40}: write pause, step, run_to, resume or renew")

    def after(self, step: int) -> None:
        """At a border: whether it is the one to pause at."""
        if self.pause_after is not None and step >= self.pause_after:
            self.paused, self.pause_after = True, None
            self.deadline = time.monotonic() + self.lease_seconds

    def release(self) -> None:
        self.paused, self.pause_after = False, None

    @property
    def left_seconds(self) -> float:
        """Until the pause ends by itself."""
        return max(self.deadline - time.monotonic(), 0.0) if self.paused else 0.0

    def _lease(self, wish: Mapping[str, Any]) -> None:
        seconds = wish.get("lease_seconds") or DEFAULT_LEASE_SECONDS
        if type(seconds) not in (int, float) or not 0 < seconds <= MAX_LEASE_SECONDS:
            raise DataError(f"a lease of {seconds!r:.40}: at most {MAX_LEASE_SECONDS:g} seconds")
        self.lease_seconds = float(seconds)
        self.deadline = time.monotonic() + self.lease_seconds


def hold(
    control: TrainControl,
    agreement: Agreement,
    rank: int,
    *,
    listen: Callable[[], object],
    stopping: Callable[[], bool],
    take_up: Callable[[Document], None],
    settle: Callable[[], None],
) -> None:
    """In a border, until training goes on. `listen` publishes what this rank has heard meanwhile; `take_up` does what a
    document says, on all ranks alike; `settle` what this rank alone was told, after each round."""
    said = False
    while control.paused:
        listen()
        if stopping() and not said:
            said = True
            agreement.publish(f"stopping/{rank}", {"stop": rank})
        if rank == 0:
            over = time.monotonic() >= control.deadline
            round_ = _opened(agreement, EXPIRED if over else "") if over or agreement.pending() else None
        else:
            round_ = agreement.opened_round()
        if round_ is None:
            time.sleep(POLL_SECONDS)
            continue
        note, documents = round_
        for document in documents:
            take_up(document)
        if note == EXPIRED:
            control.release()
        settle()


def may_be_last(progress: Progress | None) -> bool:
    """After a step: whether the training may die of it. Only the last stage knows the loss, and ends of it; the others
    are ended from outside, within their next step, and learn of it nowhere: gradients may be numbers where the loss is
    none. A norm of None: float16 has overflowed."""
    if progress is None:  # of a step that the log leaves out: it does not end the training
        return False
    loss, norm = progress.loss, progress.grad_norm
    return loss is None or not math.isfinite(loss) or (norm is not None and not math.isfinite(norm))


def _opened(agreement: Agreement, note: str) -> tuple[str, list[Document]]:
    return note, agreement.open_round(note)


def _whole(wish: Mapping[str, Any], name: str) -> int:
    value = wish.get(name) or 0
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)  # as JSON writes 64 bits
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise DataError(f"{name} must be a whole number, not {value!r:.40}")
    return value
