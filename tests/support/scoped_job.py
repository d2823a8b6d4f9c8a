"""A training with MegaScope, an agent and a gateway, that stands at a border until the test lets it go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.scope_gateway import ScopeGateway, scope_gateway
from tests.support.training import TINY, train

PAUSE = "pause-at-once"


def run_scoped(flags: str) -> list[float]:
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scope import ScopePlugin

    return train(flags, plugins=(ScanPlugin, ScopePlugin)).losses


def run_plain(flags: str) -> list[float]:
    return train(flags).losses


@dataclass
class ScopedJob:
    gateway: ScopeGateway
    ranks: range
    losses: Future[list[list[float]]]

    def paused_before(self) -> int:
        """The step that comes next, when all ranks stand before it."""
        acks = self.gateway.answers(PAUSE, self.ranks)
        assert {ack.code for ack in acks} == {""}
        [step] = {ack.effective_step for ack in acks}
        self.gateway.wait(lambda: ("paused", step - 1) in self.gateway.states())
        return int(step)

    def done(self) -> list[float]:
        """The losses, of the last rank."""
        return self.losses.result(120)[-1]


@contextmanager
def scoped_job(
    ranks: int,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: int,
    run: Callable[[str], list[float]] = run_scoped,
) -> Iterator[ScopedJob]:
    """It comes to its pause by itself, a few steps after its begin."""
    with scope_gateway() as (gateway, address), ThreadPoolExecutor(1) as pool:
        gateway.pause_at_once(PAUSE, ranks // 2, ranks)  # by any rank's command
        monkeypatch.setenv(GATEWAY_ADDRESS, address)
        with agent() as environment:
            flags = f"{TINY} --train-iters {steps} {layout} --scope"
            environment = {**environment, GATEWAY_ADDRESS: address}
            losses = pool.submit(run_forked, ranks, run, flags, environment=environment, timeout=120)
            gateway.wait(lambda: len(gateway.hellos) == ranks or losses.done())
            if losses.done():
                losses.result()
            yield ScopedJob(gateway, range(ranks), losses)
