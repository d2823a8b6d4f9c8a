"""MegaFBD as its user meets it: SIGTERM, checkpoints, evaluations, ranks that die or stop."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from megatronapp.cli.pipeline.recordings import rank_files
from megatronapp.core.trace import file
from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.span_names import WAITS
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.agents import agent
from tests.support.disaggregated import FBD, error_of, errors
from tests.support.forked import run_forked
from tests.support.training import TINY, Recording, train
from tests.support.varied_orders import trained
from tests.support.victim import Victim

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

TWO = "--pipeline-model-parallel-size 2"
SPLIT = f"{TWO} {FBD} --forward-pipeline-model-parallel-size 1"
"""Rank 0 runs forward, ranks 1 and 2 backward."""
STOPPED_SECONDS = 25
MICROBATCHES = 4
"""Of TINY."""
pytestmark = pytest.mark.long


class Asked(Victim):
    """A rank gets SIGTERM in step 2."""

    name = "asked"

    def step_begin(self, step: int) -> None:
        if self.is_victim and step == 2:
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


class Broken(Plugin):
    """The loss of the fourth pass is no number."""

    name = "broken"
    passes = 0

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            output, loss_of = function(*args, **kwargs)
            self.passes += 1
            return output, self._lost(loss_of) if self.passes == 4 else loss_of

        return run

    @staticmethod
    def _lost(loss_of: Any) -> Any:
        def lost(*args: Any) -> Any:
            total, tokens, logged = loss_of(*args)
            return total * math.nan, tokens, logged * math.nan

        return lost


def run_broken(flags: str, steps: int) -> list[float | None]:
    recording = train(f"{TINY} --train-iters {steps} {flags}", plugins=(FbdPlugin, Broken))
    return [each.loss for each in recording.steps]


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_the_step_after_one_that_is_left_out_or_gone_back_from_has_stocks_weights(tmp_path: Path, policy: str) -> None:
    flags = f"--global-batch-size 2 --nan-policy {policy} --save-interval 2 --save {tmp_path}"

    stock = run_forked(2, run_broken, f"{TWO} {flags}/stock", 6)[-1]
    chosen = run_forked(3, run_broken, f"{SPLIT} {flags}/chosen", 6)[-1]

    assert chosen == stock
    assert [loss is None for loss in chosen] == [False] * 3 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("mode", "forward", "backward"),
    [
        ("input", {"wait_weights", "wait_slot"}, {"wait_input"}),
        ("linears", {"wait_weights", "wait_slot"}, {"wait_input", "wait_linears"}),
    ],
)
def test_a_trace_tells_what_each_role_waits_for_and_how_many_slots_are_held(
    tmp_path: Path, mode: str, forward: set[str], backward: set[str]
) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-interval 1 --continuous-trace-iterations 1"
    flags = f"{SPLIT} --fbd-mode {mode} --fbd-slots 3 {trace}"

    with agent() as environment:
        run_forked(3, partial(trained, steps=2), flags, ScanPlugin, FbdPlugin, environment=environment)
    told = [waits_of(path) for path in rank_files(tmp_path)]

    assert [set(each) for each in told] == [forward, *([set(), backward] if mode == "input" else [backward] * 2)]
    held = told[2]["wait_input"]
    assert len(held) == 2 * MICROBATCHES
    assert 1 <= max(held) <= 3


def waits_of(path: Path) -> dict[str, list[int]]:
    """The tokens' column of each wait, by name."""
    found: dict[str, list[int]] = {}
    for batch in (message.batch for message in file.read(path) if message.HasField("batch")):
        columns = span_columns(batch)
        for name, tokens in zip(columns["name"].tolist(), columns["tokens"].tolist(), strict=True):
            if batch.names[name] in WAITS:
                found.setdefault(batch.names[name], []).append(tokens)
    return found


class Ending(Victim):
    """One rank is killed, or stopped, in the middle of a step's forward passes."""

    name = "ending"
    number = signal.SIGKILL
    passes = 0

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            if self.is_victim and self.passes == 10:
                # Who is stopped must end some time, for the test to end.
                subprocess.Popen(["sh", "-c", f"sleep {STOPPED_SECONDS}; kill -9 {os.getpid()}"])
                os.kill(os.getpid(), self.number)
            return function(*args, **kwargs)

        return run


def error_said(victim: int, number: signal.Signals) -> str:
    Ending.victim, Ending.number = victim, number
    try:
        trained(f"{TWO} {FBD}", FbdPlugin, Ending)
    except Exception as error:  # noqa: BLE001  (whoever waits in gloo gets its error)
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("victim", "number", "twin", "place"),
    [
        (0, signal.SIGKILL, 1, "forward, stage 0"),
        (2, signal.SIGKILL, 3, "forward, stage 1"),
        (3, signal.SIGKILL, 2, "backward, stage 1"),
        (2, signal.SIGSTOP, 3, "forward, stage 1"),
    ],
    ids=["forward killed that holds the store", "forward killed", "backward killed", "forward stopped"],
)
def test_who_dies_or_stops_is_named_with_its_role_and_stage(
    victim: int, number: signal.Signals, twin: int, place: str
) -> None:
    said = run_forked(4, error_said, victim, number, may_die=[victim])

    assert said[victim] is None
    assert all(said[rank] for rank in range(4) if rank != victim)
    assert f"rank {victim} ({place}, tensor rank 0, replica 0) is lost" in said[twin]


class StoppedBetweenSteps(Plugin):
    """The rank that holds the store stops when its passes of a step are done."""

    name = "stopped-between-steps"
    noted = Path()

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls() if context.identity.rank == 0 else None

    def step_end(self, step: int, progress: Any) -> None:
        if step == 2:
            subprocess.Popen(["sh", "-c", f"sleep {STOPPED_SECONDS}; kill -9 {os.getpid()}"])
            self.noted.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGSTOP)


def run_stopped(noted: Path) -> None:
    StoppedBetweenSteps.noted = noted
    error_of(noted.parent, partial(trained, SPLIT, FbdPlugin, StoppedBetweenSteps))


def test_who_waits_for_the_store_of_a_stopped_rank_ends_with_its_name(tmp_path: Path) -> None:
    noted = tmp_path / "stopped"

    run_forked(3, run_stopped, noted, may_die=range(3))

    stopped, said = float(noted.read_text()), errors(tmp_path)
    assert said.keys() == {1, 2}
    named = [
        at for at, error in said.values() if "rank 0 (forward, stage 0, tensor rank 0, replica 0) is lost" in error
    ]
    assert min(named) - stopped < 12
