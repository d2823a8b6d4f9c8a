"""A rank that is killed is named by those that are left, at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from megatronapp.core.errors import TrainingError
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.dpp import DppPlugin
from tests.support.forked import run_forked
from tests.support.marks import some
from tests.support.stuck import stuck
from tests.support.varied_orders import trained
from tests.support.victim import Victim

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = pytest.mark.long

STAGES = 4
FLAGS = f"--pipeline-model-parallel-size {STAGES} --use-dpp --dpp-policy interleaved-zb --global-batch-size 32"
WITHIN_SECONDS = 2.0
STEPS = 10_000


class Killed(Victim):
    """One rank: while others wait for its messages, or for its part in the gradients' norm."""

    name = "killed"
    in_collective: ClassVar[bool] = False
    noted: ClassVar[Path] = Path()

    def step_begin(self, step: int) -> None:
        self._step = step
        if self.is_victim and step == 3 and not self.in_collective:
            threading.Timer(0.3, self._end).start()

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            if self.is_victim and self._step == 3 and self.in_collective:
                time.sleep(0.5)
                self._end()
            return step()

        return run

    def _end(self) -> None:
        self.noted.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


class Stuck(Killed):
    """As Killed; the others are stuck in a native call when they come to their part in the gradients' norm."""

    def step_begin(self, step: int) -> None:
        self._step = step

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            if self._step < 3:
                return step()
            if not self.is_victim:
                stuck()
            time.sleep(0.5)
            return self._end()

        return run


def run_stuck(victim: int, noted: Path) -> None:
    Killed.victim, Killed.noted = victim, noted
    with noted.with_suffix(f".{os.environ['RANK']}").open("w") as said:
        os.dup2(said.fileno(), 2)
    trained(FLAGS, DppPlugin, Stuck, steps=STEPS)


def error_of(victim: int, in_collective: bool, noted: Path) -> tuple[float, str]:
    """When this rank's run broke off, and with which error."""
    Killed.victim, Killed.in_collective, Killed.noted = victim, in_collective, noted
    with pytest.raises(TrainingError) as raised:
        trained(FLAGS, DppPlugin, Killed, steps=STEPS)
    return time.time(), str(raised.value)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("in_collective", [False, True], ids=["messages", "collective"])
@pytest.mark.parametrize("victim", some(range(STAGES), lambda victim: victim % 2 == 0))  # rank 0 holds the store, too
def test_it_is_named_within_two_seconds(tmp_path: Path, victim: int, in_collective: bool) -> None:
    noted = tmp_path / "killed"

    said = run_forked(STAGES, partial(error_of, victim, in_collective, noted), may_die=[victim])

    killed = float(noted.read_text())
    survivors = [each for rank, each in enumerate(said) if rank != victim]
    named = [at - killed for at, error in survivors if f"rank {victim} is lost" in error]
    assert named, survivors
    assert min(named) < WITHIN_SECONDS


@pytest.mark.timeout(120)
def test_ranks_that_are_stuck_in_a_native_call_are_ended_by_its_neighbours_watch(tmp_path: Path) -> None:
    noted, victim, neighbours = tmp_path / "killed", 1, (0, 2)

    run_forked(STAGES, run_stuck, victim, noted, may_die=range(STAGES))

    for rank in neighbours:
        said = noted.with_suffix(f".{rank}")
        assert f"error: rank {victim} is lost" in said.read_text()
        assert said.stat().st_mtime - float(noted.read_text()) < WITHIN_SECONDS
