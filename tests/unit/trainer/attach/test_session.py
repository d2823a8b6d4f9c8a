"""Who says where a step ends, and what the plug-ins hear of it."""

from __future__ import annotations

import contextlib
import sys
import threading

import pytest

from megatronapp.core.trace.values import Phase, Progress
from megatronapp.trainer.attach.session import Bounds, Session
from megatronapp.trainer.plugins.base import Degree, Plugin, TimerHub
from megatronapp.trainer.plugins.chain import PluginChain


class Listener(Plugin):
    name = "heard"

    def __init__(self) -> None:
        self.events: list[str] = []

    def step_begin(self, step: int) -> None:
        self.events.append(f"begin {step}")

    def step_end(self, step: int, progress: Progress | None) -> None:
        self.events.append(f"end {step}" + (f" {progress.loss}" if progress else ""))

    def phase_begin(self, phase: Phase) -> None:
        self.events.append(f"into {phase.name}")

    def phase_end(self, phase: Phase) -> None:
        self.events.append(f"out of {phase.name}")

    def close(self) -> None:
        self.events.append("close")


def session() -> tuple[Session, list[str]]:
    heard = Listener()
    return Session(PluginChain([heard]), TimerHub(), Degree.COLLECTIVES), heard.events


def test_an_optimizer_ends_what_data_or_a_pass_has_begun() -> None:
    session_, events = session()

    for _ in range(2):
        session_.begin(Bounds.OPTIMIZER)
        session_.begin(Bounds.OPTIMIZER)
        session_.end(Bounds.OPTIMIZER)

    assert events == ["begin 1", "end 1", "begin 2", "end 2"]


def test_a_loop_that_numbers_its_steps_is_believed_before_the_optimizer() -> None:
    session_, events = session()

    session_.begin(Bounds.LOOP, 41)
    session_.begin(Bounds.OPTIMIZER)
    session_.end(Bounds.OPTIMIZER)
    session_.end(Bounds.LOOP, Progress(loss=2.5))
    session_.begin(Bounds.OPTIMIZER)

    assert events == ["begin 41", "end 41 2.5"]


def test_a_step_that_was_never_ended_ends_as_the_next_one_begins() -> None:
    session_, events = session()

    session_.begin(Bounds.LOOP, 1)
    session_.begin(Bounds.LOOP, 2)

    assert events == ["begin 1", "end 1", "begin 2"]


def test_an_evaluation_inside_of_an_evaluation_is_one() -> None:
    session_, events = session()

    with session_.phase(Phase.EVALUATION), session_.phase(Phase.EVALUATION):
        pass

    assert events == ["into EVALUATION", "out of EVALUATION"]


def test_other_threads_are_not_the_training_thread() -> None:
    session_, _ = session()
    seen: list[bool] = []

    thread = threading.Thread(target=lambda: seen.append(session_.here))
    thread.start()
    thread.join()

    assert session_.here
    assert seen == [False]


def test_it_ends_once() -> None:
    session_, events = session()

    session_.close()
    session_.close()

    assert events == ["into PAUSE", "close"]


def test_a_rank_that_an_error_ends_does_not_end_in_a_pause() -> None:
    session_, events = session()

    with pytest.raises(RuntimeError), contextlib.closing(session_):
        raise RuntimeError("out of memory")

    assert events == ["close"]


def test_nor_does_one_whose_error_python_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's end."""
    session_, events = session()
    monkeypatch.setattr(sys, "last_value", RuntimeError("out of memory"), raising=False)

    session_.close()

    assert events == ["close"]


def test_one_that_exits_with_0_ends_in_a_pause() -> None:
    session_, events = session()

    with pytest.raises(SystemExit), contextlib.closing(session_):
        sys.exit(0)

    assert events == ["into PAUSE", "close"]
    assert not session_.here


def test_a_step_that_has_ended_tells_that_there_are_steps() -> None:
    session_, _ = session()
    degrees = [session_.degree]

    session_.begin(Bounds.OPTIMIZER)
    degrees.append(session_.degree)
    session_.end(Bounds.OPTIMIZER)

    assert [*degrees, session_.degree] == [Degree.COLLECTIVES, Degree.COLLECTIVES, Degree.STEPS]
