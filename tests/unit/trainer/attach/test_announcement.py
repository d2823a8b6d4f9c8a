"""What is said of how much is seen, and when."""

from __future__ import annotations

import threading

import pytest

from megatronapp.core.trace.values import Identity
from megatronapp.trainer.attach import announcement
from megatronapp.trainer.attach.announcement import Announcement
from megatronapp.trainer.plugins.base import Degree

WAIT_SECONDS = 60.0


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(announcement, "say", lines.append)
    return lines


def of_rank(rank: int = 0, **options: float) -> Announcement:
    return Announcement(Identity(run="run-1", job="team/gpt", attempt=1, rank=rank, incarnation=1), **options)


def test_a_program_on_schedules_is_told_of_at_once(said: list[str]) -> None:
    told = of_rank()
    told.of_degree(Degree.FULL)
    told.close(Degree.FULL)

    [line] = said
    assert line.startswith("attached to team/gpt, run run-1: full: microbatches")


def test_a_program_is_told_of_when_its_first_step_has_ended(said: list[str]) -> None:
    told = of_rank()
    told.of_degree(Degree.COLLECTIVES)
    assert said == []
    told.of_degree(Degree.STEPS)
    told.close(Degree.STEPS)

    [line] = said
    assert "steps and collectives" in line


def test_a_program_that_ends_without_a_step_had_collectives_alone(said: list[str]) -> None:
    told = of_rank()
    told.of_degree(Degree.COLLECTIVES)
    told.close(Degree.COLLECTIVES)

    [line] = said
    assert "collectives alone" in line


def test_a_program_without_steps_is_told_of_after_a_while_and_its_first_step_then(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = threading.Event()
    monkeypatch.setattr(announcement, "say", lambda line: (said.append(line), first.set()))
    told = of_rank(patience_seconds=0.0)

    told.of_degree(Degree.COLLECTIVES)
    assert first.wait(WAIT_SECONDS)
    told.of_degree(Degree.STEPS)

    assert ["alone" in line for line in said] == [True, False]


def test_other_ranks_say_nothing(said: list[str]) -> None:
    told = of_rank(1)
    told.of_degree(Degree.COLLECTIVES)
    told.of_degree(Degree.STEPS)
    told.close(Degree.STEPS)

    assert said == []
