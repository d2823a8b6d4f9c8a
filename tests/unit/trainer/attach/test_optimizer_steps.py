"""Which step of an optimizer is a step of the training."""

from __future__ import annotations

from typing import Any, cast

import torch

from megatronapp.core.trace.values import Progress
from megatronapp.trainer.attach.attachment import Attachment
from megatronapp.trainer.attach.session import Session
from megatronapp.trainer.attach.torch_loop import OptimizerSteps
from megatronapp.trainer.plugins.base import Degree, Plugin, TimerHub
from megatronapp.trainer.plugins.chain import PluginChain


class Noted(Plugin):
    name = "noted"

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, name: str) -> None:
        self.events.append(f"start {name}")

    def stop(self, name: str) -> None:
        self.events.append(f"stop {name}")

    def step_end(self, step: int, progress: Progress | None) -> None:
        self.events.append(f"end {step}")


class Attached:
    def __init__(self, noted: Noted) -> None:
        timers = TimerHub()
        timers.listeners.append(noted)
        self.session = Session(PluginChain([noted]), timers, Degree.COLLECTIVES)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def steps() -> tuple[OptimizerSteps, list[str]]:
    noted = Noted()
    return OptimizerSteps(cast(Attachment, Attached(noted))), noted.events


def step(of: OptimizerSteps, container: Any, *parts: Any) -> None:
    """As torch calls its hooks where a container's step calls those of its parts."""
    of.before(container)
    for part in parts:
        step(of, part)
    of.after(container)


def test_a_container_of_optimizers_ends_one_step_and_is_one_optimizer() -> None:
    hooks, events = steps()
    container, one, other = optimizer(), optimizer(), optimizer()

    step(hooks, container, one, other)
    step(hooks, container, one, other)

    assert events == ["start optimizer", "stop optimizer", "end 1", "start optimizer", "stop optimizer", "end 2"]


def test_of_two_optimizers_that_take_turns_the_first_ends_steps() -> None:
    hooks, events = steps()
    one, other = optimizer(), optimizer()

    for each in (one, other, one):
        step(hooks, each)

    assert [event for event in events if event.startswith("end")] == ["end 1", "end 2"]


def test_a_step_that_failed_is_taken_again() -> None:
    hooks, events = steps()
    one = optimizer()
    hooks.before(one)

    step(hooks, one)

    assert "end 1" in events
