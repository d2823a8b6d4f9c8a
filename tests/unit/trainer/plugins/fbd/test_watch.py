"""Whom the watch ends: who does not find by itself that a twin is lost."""

from __future__ import annotations

import threading

import pytest

from megatronapp.trainer.plugins.fbd import watch
from megatronapp.trainer.plugins.fbd.watch import Watch

LOST = "rank 1 (forward, stage 0) is lost"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reasons: list[str] = []
    monkeypatch.setattr(watch, "end_process", reasons.append)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.05)
    return reasons


def watched(lost: Watch) -> None:
    lost.begin()
    for thread in threading.enumerate():
        if thread.name == "fbd-watch":
            thread.join(5)


def test_who_hangs_is_ended_with_the_lost_twins_name(ended: list[str]) -> None:
    watched(Watch(lambda: LOST))

    assert ended == [LOST]


def test_who_finds_by_itself_that_a_twin_is_lost_ends_as_it_does(ended: list[str]) -> None:
    def lost() -> str:
        each.end()
        return LOST

    each = Watch(lost)
    watched(each)

    assert ended == []
