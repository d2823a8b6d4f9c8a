"""The plug-in over the agent and a gateway: frames go up, commands come down, and the training is what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from megatronapp.v1 import scope_pb2
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.scope_gateway import ScopeGateway, scope_gateway
from tests.support.training import TINY, train

STEPS = 24
FLAGS = f"{TINY} --train-iters {STEPS} --log-interval 1"


def run_scoped(flags: str) -> list[float]:
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scope import ScopePlugin

    return train(flags, plugins=(ScanPlugin, ScopePlugin)).losses


def run_plain(flags: str) -> list[float]:
    return train(flags).losses


@dataclass
class Job:
    gateway: ScopeGateway
    ranks: range
    losses: Future[list[list[float]]]

    def done(self) -> list[float]:
        """The losses, of the last rank."""
        return self.losses.result(120)[-1]


@contextmanager
def job(ranks: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with scope_gateway() as (gateway, address), ThreadPoolExecutor(1) as pool:
        gateway.pause_at_once("pause", ranks // 2)  # by any rank's command
        monkeypatch.setenv(GATEWAY_ADDRESS, address)
        with agent() as environment:
            environment = {**environment, GATEWAY_ADDRESS: os.environ[GATEWAY_ADDRESS]}
            losses = pool.submit(
                run_forked, ranks, run_scoped, f"{FLAGS} {layout} --scope", environment=environment, timeout=120
            )
            gateway.wait(lambda: len(gateway.hellos) == ranks or losses.done())
            yield Job(gateway, range(ranks), losses)


def tap(number: int, expression: str, **options: Any) -> scope_pb2.ScopeTap:
    return scope_pb2.ScopeTap(id=number, expression=expression, quantizer="f32", **options)


def values(frame: Frame) -> Values:
    result = of_frame(frame)
    assert isinstance(result, Values)
    return result


LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"


def test_a_training_is_paused_watched_disturbed_and_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(4, LAYOUT, monkeypatch) as running:
        gateway, ranks = running.gateway, running.ranks

        # All stand at the same border.
        acks = gateway.answers("pause", ranks)
        assert {(ack.code, ack.effective_step) for ack in acks} == {("", acks[0].effective_step)}
        first = acks[0].effective_step
        gateway.wait(lambda: ("paused", first - 1) in gateway.states())

        # Each rank shows its part, of the steps that are made.
        gateway.demand(1, [tap(1, "layers[*].resid_post"), tap(2, "layers[0].attn.probs | head(0)")], ranks)
        gateway.train("step", 0, ranks, "step", steps=2, lease_seconds=60)
        gateway.wait(lambda: ("paused", first + 1) in gateway.states())
        shown = gateway.wait(lambda: _complete(gateway, ranks, first))
        assert {frame.layer for frame in shown[0]} == {0, 1}
        assert {frame.layer for frame in shown[3]} == {2, 3}
        assert values(shown[0][0]).array.shape == (2, 8, 32)

        # A disturbance takes hold at the border, and is gone when it is cleared.
        noise = scope_pb2.ScopePerturbation(place="system", kind="noise1", coefficient=0.5, layers="1")
        plan = scope_pb2.ScopePerturb(plan="noise", perturbations=[noise], seed=1)
        assert {ack.code for ack in gateway.command("noise", 1, ranks, perturb=plan)} == {""}
        wrong = scope_pb2.ScopePerturb(perturbations=[scope_pb2.ScopePerturbation(kind="explode")])
        assert {ack.code for ack in gateway.command("wrong", 1, ranks, perturb=wrong)} == {"invalid"}
        clear = scope_pb2.ScopePerturbClear()
        assert {ack.code for ack in gateway.command("clear", 3, ranks, perturb_clear=clear)} == {""}

        gateway.demand(2, [], ranks)
        gateway.train("resume", 0, ranks, "resume")
        losses = running.done()

    assert losses == run_forked(4, run_plain, f"{FLAGS} {LAYOUT}")[-1]


def _complete(gateway: ScopeGateway, ranks: range, step: int) -> dict[int, list[Frame]] | None:
    """By rank the frames of the residual of one step, once they are all there: 2 layers in 4 microbatches."""
    found = {
        rank: [frame for frame in gateway.frames[rank] if frame.subscription == 1 and frame.step == step]
        for rank in ranks
    }
    return found if all(len(frames) == 8 for frames in found.values()) else None
