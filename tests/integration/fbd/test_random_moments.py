"""A thousand steps with random delays, and ranks that are killed or stopped at random moments."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from tests.support.delayed_worlds import CASES, Late, assert_delays_change_nothing
from tests.support.disaggregated import Case, error_of, errors
from tests.support.forked import run_forked
from tests.support.varied_orders import trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = pytest.mark.exhaustive

STEPS = 1000
SPLIT = {
    "input": Case("", pipeline=2),
    "linears": Case("", pipeline=1, linears=True),
    "input, DP 2": Case("--use-distributed-optimizer --global-batch-size 16", pipeline=2, data=2, forward_pipeline=1),
}
VICTIMS = [(name, rank) for name, case in SPLIT.items() for rank in range(case.ranks)]
WITHIN_SECONDS = {signal.SIGKILL: 2.0, signal.SIGSTOP: 12.0}
SPREAD_SECONDS = 2.0
"""Over so long the moments are spread: many steps."""
STOPPED_SECONDS = 40
MOMENTS = 3


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_steps_with_random_delays_are_stocks(name: str) -> None:
    assert_delays_change_nothing(name, steps=STEPS)


class Ending(Plugin):
    """One rank is killed or stopped, at a moment that no step knows of."""

    name = "ending"
    victim, number, seconds, noted = -1, signal.SIGKILL, 0.0, Path()

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == cls.victim else None

    def step_begin(self, step: int) -> None:
        if step == 2:
            threading.Timer(self.seconds, self._end).start()

    def _end(self) -> None:
        # Who is stopped must end some time, for the test to end.
        subprocess.Popen(["sh", "-c", f"sleep {STOPPED_SECONDS}; kill -9 {os.getpid()}"])
        self.noted.write_text(str(time.time()))
        os.kill(os.getpid(), self.number)


def run(name: str, victim: int, number: signal.Signals, *, seconds: float, noted: Path) -> None:
    Ending.victim, Ending.number, Ending.seconds, Ending.noted = victim, number, seconds, noted
    error_of(noted.parent, partial(trained, SPLIT[name].asked, FbdPlugin, Late, Ending, steps=STEPS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("number", WITHIN_SECONDS, ids=["killed", "stopped"])
@pytest.mark.parametrize(("name", "victim"), VICTIMS)  # rank 0 holds the store, too
def test_who_ends_at_a_random_moment_is_named_in_time(
    tmp_path: Path, name: str, victim: int, number: signal.Signals, moment: int
) -> None:
    seconds = random.Random(f"{name} {victim} {number} {moment}").uniform(0, SPREAD_SECONDS)
    noted, case = tmp_path / "ended", SPLIT[name]

    run_forked(
        case.ranks,
        partial(run, seconds=seconds, noted=noted),
        name,
        victim,
        number,
        timeout=240,
        may_die=range(case.ranks),
    )

    ended, said = float(noted.read_text()), errors(tmp_path)
    assert said.keys() == set(range(case.ranks)) - {victim}
    named = f"rank {victim} ({case.roles.place(victim)}) is lost"
    assert min(at for at, error in said.values() if named in error) - ended < WITHIN_SECONDS[number]
