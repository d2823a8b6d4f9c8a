"""Plug-ins: called in the documented order, and without any effect on what is computed."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
import torch
from torch.distributed import PrefixStore

from megatronapp.core.trace.values import Phase, Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext, Preparation, ScheduleFunction
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
    assert context.store is not None
    assert context.channel.line is None  # without scan
    assert context.make_resident is not None
    unsendable = {
        "pipeline": None,
        "request_stop": print,
        "request_border": print,
        "store": None,
        "stopping": all,
        "make_resident": None,
    }
    return replace(context, **unsendable)  # what a pipe can take


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


class Bordered(Plugin):
    """Asks for borders where `ASKS` says, as (rank, step), and remembers where it was let in."""

    name = "bordered"
    ASKS = ((1, 2), (0, 5), (1, 5))

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.context = context
        return plugin

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self.chunks = chunks

    def step_begin(self, step: int) -> None:
        if (self.context.identity.rank, step) in self.ASKS:
            self.context.request_border()

    def border(self, step: int) -> bool:
        calls.append(f"border({step})")
        total = torch.stack([p.double().sum() for c in self.chunks for p in c.parameters()]).sum()
        everywhere = [torch.zeros_like(total) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(everywhere, total)  # all ranks are here
        sums.append([float(each) for each in everywhere])
        return False

    def phase_begin(self, phase: Phase) -> None:
        calls.append(f"phase_begin({phase.name})")

    def phase_end(self, phase: Phase) -> None:
        calls.append(f"phase_end({phase.name})")


sums: list[list[float]] = []


def bordered(flags: str) -> tuple[list[str], list[list[float]], list[float]]:
    losses = train(f"{TINY} --train-iters 8 {flags}", plugins=(Bordered,)).losses
    return calls, sums, losses


def test_every_rank_comes_to_a_border_after_the_same_step_when_one_asks() -> None:
    pipeline = "--pipeline-model-parallel-size 2"
    first, second = run_forked(2, bordered, pipeline)
    plain = run_forked(2, train, f"{TINY} --train-iters 8 {pipeline}")[-1]

    pause = ["phase_begin(PAUSE)", "border({})", "phase_end(PAUSE)"]
    assert first[0] == second[0] == [c.format(3) for c in pause] + [c.format(6) for c in pause] + pause[:1]
    assert second[2] == plain.losses


def test_replicas_hold_the_newest_weights_at_a_border_also_when_gathers_overlap() -> None:
    flags = "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 10000"
    gathered, _ = run_forked(2, bordered, f"{flags} --overlap-param-gather")
    waited, _ = run_forked(2, bordered, flags)

    assert all(first == second for first, second in gathered[1])
    assert gathered[1] == waited[1]


class Zeroing(Bordered):
    """Sets all weights to zero at its border."""

    ASKS = ((0, 2),)

    def border(self, step: int) -> bool:
        with torch.no_grad():
            for chunk in self.chunks:
                for parameter in chunk.parameters():
                    parameter.zero_()
        return True

    def step_end(self, step: int, progress: Progress | None) -> None:
        largest.append(max(float(p.detach().abs().max()) for c in self.chunks for p in c.parameters()))


largest: list[float] = []


def zeroing(flags: str) -> list[float]:
    train(f"{TINY} --train-iters 5 {flags}", plugins=(Zeroing,))
    return largest


@pytest.mark.parametrize("flags", ["", "--bf16", "--bf16 --use-distributed-optimizer"])
def test_weights_changed_at_a_border_are_changed_in_the_optimizer_too(flags: str) -> None:
    before, *_, after_one_step, after_two = run_forked(2, zeroing, flags)[-1]

    assert before > 0.1
    assert after_one_step < after_two < 0.01  # a learning rate of 0.001 from zero


def looks_into_the_store(flags: str) -> Counter[str]:
    """Calls of Python's on a store during ten steps."""
    seen: Counter[str] = Counter()
    for name in ("check", "get", "set", "wait", "add"):
        method = getattr(PrefixStore, name)

        def counted(*args: Any, name: str = name, method: Callable[..., Any] = method) -> Any:
            seen[name] += 1
            return method(*args)

        setattr(PrefixStore, name, counted)

    class Counting(Bordered):
        ASKS = ()

        def step_begin(self, step: int) -> None:
            if step == 1:
                seen.clear()

    train(f"{TINY} --train-iters 10 {flags}", plugins=(Counting,))
    return seen


def test_a_run_in_which_nobody_asks_looks_into_the_store_once_a_step() -> None:
    for seen in run_forked(2, looks_into_the_store, "--pipeline-model-parallel-size 2"):
        assert seen == {"check": 10}


class Preparing(Outer):
    name = "preparing"

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        assert not torch.distributed.is_initialized()
        layout = replace(preparation.layout, tensor=2, data=1, microbatches=4)
        role = f"rank {preparation.environment.rank}"
        return replace(preparation, own_layout=layout, role=role, variables={"NCCL_CUMEM_ENABLE": "0"})


class Unbalanced(Preparing):
    name = "unbalanced"

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        if preparation.environment.rank == 0:
            return preparation
        return super().prepare(args, preparation)


class Oversized(Preparing):
    name = "oversized"

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        return replace(preparation, own_layout=replace(preparation.layout, pipeline=3))


def prepared() -> tuple[str, int, str | None]:
    train(f"{TINY} --train-iters 1", plugins=(Preparing,))
    context = contexts[0]
    return context.placement.role, context.placement.sizes.tensor, os.environ.get("NCCL_CUMEM_ENABLE")


def test_a_plugin_prepares_environment_layout_and_role_before_groups_exist() -> None:
    assert run_forked(2, prepared) == [("rank 0", 2, "0"), ("rank 1", 2, "0")]


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (Unbalanced, "rank 1 trains with Layout.*tensor=2"),
        (Oversized, "plug-in oversized lays out 6 ranks, but 2 were"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_ranks_wait_for_each_other(plugin: type, says: str) -> None:
    with pytest.raises(RankFailedError, match=says):
        run_forked(2, train_with, plugin)


def train_with(plugin: type) -> None:
    train(f"{TINY} --train-iters 1", plugins=(plugin,))


def failing() -> None:
    train(FLAGS, plugins=(Inner, Broken))


def test_a_plugin_that_fails_to_close_does_not_hide_why_training_ended() -> None:
    with pytest.raises(RankFailedError, match="broken in its first step"):
        run_forked(1, failing)
