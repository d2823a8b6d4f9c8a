"""What is told of a message that takes long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from megatronapp.trainer.plugins.fbd import pending
from megatronapp.trainer.plugins.fbd.pending import Kind, Pending, wait
from megatronapp.trainer.plugins.fbd.roles import Place, Role

TWIN = Place(Role.FORWARD, stage=1, replica=0, context=0, tensor=0)


class TimedOutError(Exception):
    pass


class LateHandle:
    """Ends after so many slices."""

    def __init__(self, slices: int) -> None:
        self.left = slices

    def wait(self, seconds: float) -> None:
        self.left -= 1
        if self.left >= 0:
            raise TimedOutError

    def done(self) -> bool:
        return False


def late(slices: int, kind: Kind = Kind.INPUT, *, sends: bool = False) -> Pending:
    handle: Any = LateHandle(slices)
    return Pending(handle=handle, kind=kind, twin=TWIN, twin_rank=2, sends=sends, of={"microbatch": 3, "chunk": 0})


def waits_told(message: Pending, check: Callable[[], Any] = lambda: None) -> list[str]:
    said: list[str] = []
    wait(message, TimedOutError, check, lambda each: said.append(str(each)))
    return said


def test_a_long_wait_is_told_once_with_who_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LONG_SECONDS", 0.0)

    assert waits_told(late(3)) == [
        "input (microbatch 3, chunk 0) from rank 2 (forward, stage 1, tensor rank 0, replica 0)"
    ]
    assert waits_told(late(1, sends=True)) == [
        "rank 2 (forward, stage 1, tensor rank 0, replica 0) to take input (microbatch 3, chunk 0)"
    ]


def test_the_next_step_comes_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LONG_SECONDS", 0.0)

    assert waits_told(late(3, Kind.GO)) == []


def test_a_short_wait_is_not_told() -> None:
    assert waits_told(late(1)) == []


def test_whoever_is_lost_meanwhile_ends_the_wait() -> None:
    def lost() -> None:
        raise ConnectionError("rank 4 is lost")

    with pytest.raises(ConnectionError, match="rank 4"):
        waits_told(late(10), lost)


class JustEndedHandle(LateHandle):
    """Ends as its first slice does."""

    def done(self) -> bool:
        return self.left < 1


def test_a_message_that_comes_as_its_slice_ends_has_come() -> None:
    message = replace(late(1), handle=JustEndedHandle(1))

    assert waits_told(message) == []


class OverdueHandle(LateHandle):
    def wait(self, seconds: float) -> None:
        raise TimedOutError

    def done(self) -> bool:
        return True


def test_a_message_that_was_not_taken_by_its_deadline_ends_the_wait() -> None:
    with pytest.raises(TimedOutError):
        waits_told(replace(late(1), handle=OverdueHandle(1)))
