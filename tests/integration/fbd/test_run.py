"""MegaFBD as its user meets it: SIGTERM, checkpoints, evaluations, ranks that die or stop."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any, Self

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from tests.support.disaggregated import FBD
from tests.support.forked import run_forked
from tests.support.training import TINY, Recording, train
from tests.support.varied_orders import trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

TWO = "--pipeline-model-parallel-size 2"
SPLIT = f"{TWO} {FBD} --forward-pipeline-model-parallel-size 1"
"""Rank 0 runs forward, ranks 1 and 2 backward."""
pytestmark = pytest.mark.long


class Asked(Plugin):
    """A rank gets SIGTERM in step 2."""

    name = "asked"
    victim = -1

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.is_asked = context.identity.rank == cls.victim
        return plugin

    is_asked = False

    def step_begin(self, step: int) -> None:
        if self.is_asked and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def run(flags: str, steps: int, asked: int = -1) -> Recording:
    Asked.victim = asked
    return train(f"{TINY} --train-iters {steps} {flags}", plugins=(FbdPlugin, Asked))


def test_a_forward_rank_that_is_asked_to_end_ends_all_and_stock_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = run_forked(2, run, TWO, 8)[-1].losses
    keeping = f"--save {tmp_path} --eval-interval 2 --eval-iters 1"

    begun = run_forked(3, run, f"{SPLIT} {keeping}", 8, 0)[-1]
    stopped = len(begun.losses)
    more = run_forked(2, run, f"{TWO} {keeping}", stopped + 2)[-1]
    rest = run_forked(3, run, f"{SPLIT} {keeping}", 8)[-1]

    assert 2 <= stopped < 6
    assert begun.losses + more.losses + rest.losses == whole
    assert [each.step for each in begun.evaluations] == list(range(2, stopped + 1, 2))


class Ending(Plugin):
    """One rank is killed, or stopped, in the middle of a step's forward passes."""

    name = "ending"
    victim, number = -1, signal.SIGKILL

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.ends = context.identity.rank == cls.victim
        return plugin

    ends = False
    passes = 0

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            if self.ends and self.passes == 10:
                Path(os.environ["ENDED"]).write_text(str(time.time()))
                os.kill(os.getpid(), self.number)
            return function(*args, **kwargs)

        return run


def error_of(victim: int, number: signal.Signals) -> tuple[str, float]:
    Ending.victim, Ending.number = victim, number
    try:
        trained(SPLIT, FbdPlugin, Ending)
    except Exception as error:  # noqa: BLE001  (whoever waits in gloo gets its error)
        return str(error), time.time()
    return "", 0.0


@pytest.mark.parametrize(("victim", "place"), [(1, "backward, stage 0"), (2, "backward, stage 1")])
def test_a_backward_rank_that_is_killed_is_named_by_the_forward_rank(tmp_path: Path, victim: int, place: str) -> None:
    environment = {"ENDED": str(tmp_path / "ended")}

    said = run_forked(3, error_of, victim, signal.SIGKILL, environment=environment, may_die=[victim])

    message, at = said[0]
    assert f"rank {victim} ({place}, tensor rank 0, replica 0) is lost" in message
    assert at - float((tmp_path / "ended").read_text()) < 10  # at once, but for the machine's load
