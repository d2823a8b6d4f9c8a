"""Plug-ins: called in the documented order, and without any effect on what is computed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
import torch

from megatronapp.core.trace.values import Phase, Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext, ScheduleFunction
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

FLAGS = f"{TINY} --train-iters 2 --eval-iters 1 --eval-interval 2 --hidden-dropout 0.1"
calls: list[str] = []
contexts: list[PluginContext] = []


class Outer(Plugin):
    """Overrides every hook and changes nothing."""

    name = "outer"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        context.timers.listeners.append(cls())
        contexts.append(context)
        return cls._call("create", cls())

    @classmethod
    def _call(cls, hook: str, value: Any) -> Any:
        calls.append(f"{cls.name}.{hook}")
        return value

    def configure(self, config: Any) -> None:
        self._call("configure", None)

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._call(f"models({len(chunks)})", None)

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        return self._call("forward_step", lambda *args: function(*args))

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return self._call("data", iter(iterator))

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        return self._call("schedule", lambda **options: function(**options))

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        return self._call("optimizer", lambda: step())

    def step_begin(self, step: int) -> None:
        self._call(f"step_begin({step})", None)

    def step_end(self, step: int, progress: Progress | None) -> None:
        assert progress is not None
        self._call(f"step_end({step})", None)

    def phase_begin(self, phase: Phase) -> None:
        self._call(f"phase_begin({phase.name})", None)

    def phase_end(self, phase: Phase) -> None:
        self._call(f"phase_end({phase.name})", None)

    def close(self) -> None:
        self._call("close", None)

    def start(self, name: str) -> None:
        calls.append(f"{self.name}.timer {name}")

    def stop(self, name: str) -> None:
        pass


class Inner(Outer):
    name = "inner"

    def close(self) -> None:
        super().close()
        raise RuntimeError("a plug-in that fails to close")


class Off(Plugin):
    name = "off"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> None:
        return None


class Broken(Outer):
    name = "broken"

    def step_begin(self, step: int) -> None:
        raise ValueError("broken in its first step")


def traced_calls() -> tuple[list[float], list[str]]:
    losses = train(FLAGS, plugins=(Outer, Off, Inner)).losses
    return losses, calls


def test_hooks_are_called_in_the_documented_order_nested() -> None:
    [(_, found)] = run_forked(1, traced_calls)

    hooks = [call for call in found if ".timer" not in call]
    assert hooks == [
        *("outer.create", "inner.create", "outer.configure", "inner.configure", "outer.models(1)", "inner.models(1)"),
        *("inner.forward_step", "outer.forward_step", "inner.data", "outer.data", "inner.schedule", "outer.schedule"),
        *("inner.optimizer", "outer.optimizer"),
        *("outer.step_begin(1)", "inner.step_begin(1)", "inner.step_end(1)", "outer.step_end(1)"),
        *("outer.step_begin(2)", "inner.step_begin(2)", "inner.step_end(2)", "outer.step_end(2)"),
        *("outer.phase_begin(EVALUATION)", "inner.phase_begin(EVALUATION)"),
        *("inner.phase_end(EVALUATION)", "outer.phase_end(EVALUATION)"),
        *("outer.phase_begin(EVALUATION)", "inner.phase_begin(EVALUATION)"),
        *("inner.phase_end(EVALUATION)", "outer.phase_end(EVALUATION)"),
        *("outer.phase_begin(PAUSE)", "inner.phase_begin(PAUSE)"),
        *("inner.close", "outer.close"),
    ]
    timers = [call for call in found if ".timer forward-compute" in call]
    assert timers[:2] == ["outer.timer forward-compute", "inner.timer forward-compute"]


def test_hooks_that_change_nothing_leave_every_loss_bitwise_as_it_was() -> None:
    [without] = run_forked(1, train, FLAGS)
    [(losses, _)] = run_forked(1, traced_calls)

    assert losses == without.losses


def context_of() -> PluginContext:
    train(f"{TINY} --train-iters 1 --pipeline-model-parallel-size 2", plugins=(Outer,))
    context = contexts[0]
    context.timers.listeners.clear()
    assert context.pipeline is not None
    return replace(context, pipeline=None, request_border=print)  # what a pipe can take


def test_the_context_tells_who_and_where_each_rank_is() -> None:
    environment = {
        "MEGATRONAPP_RUN_ID": "uid",
        "MEGATRONAPP_JOB": "team/gpt",
        "MEGATRONAPP_ATTEMPT": "3",
        "MEGATRONAPP_NODE_NAME": "node-a",
        "MEGATRONAPP_COLLECTOR_ADDRESS": "collector:7601",
        "MEGATRONAPP_TOKEN_FILE": "/run/token",
    }

    first, second = run_forked(2, context_of, environment=environment)

    identity = second.identity
    assert (identity.run, identity.job, identity.attempt, identity.rank) == ("uid", "team/gpt", 3, 1)
    assert first.identity.incarnation != identity.incarnation
    assert (second.placement.node, second.placement.pipeline, second.placement.sizes.pipeline) == ("node-a", 1, 2)
    assert (second.schedule.name, second.schedule.microbatches, second.schedule.first_step) == ("1f1b", 4, 1)
    assert (second.collector_address, second.token_file) == ("collector:7601", "/run/token")


def test_ranks_agree_on_the_name_of_a_nameless_run() -> None:
    first, second = run_forked(2, context_of)

    assert first.identity.run
    assert first.identity.run == second.identity.run


def failing() -> None:
    train(FLAGS, plugins=(Inner, Broken))


def test_a_plugin_that_fails_to_close_does_not_hide_why_training_ended() -> None:
    with pytest.raises(RankFailedError, match="broken in its first step"):
        run_forked(1, failing)
