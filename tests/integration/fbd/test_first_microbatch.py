"""The first microbatch of a step that is to be expected is run before the step is known to come."""

from __future__ import annotations

import argparse
from typing import Any, Self

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.forward import ForwardLoop
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.disaggregated import Case
from tests.support.forked import run_forked
from tests.support.varied_orders import trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS, MICROBATCHES = 3, 2
FLAGS = "--micro-batch-size 1 --global-batch-size 2"
STEP = ["F"] * MICROBATCHES


class Acting(Plugin):
    """What its rank does: a microbatch's forward, and the end of its wait for a step."""

    name = "acting"
    acts: list[str]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.acts = acts = []
        wait = ForwardLoop._wait_for_go

        def waited(*args: Any, **options: Any) -> Any:
            go = wait(*args, **options)
            acts.append(f"step {go.step}")
            return go

        ForwardLoop._wait_for_go = waited  # type: ignore[method-assign]
        return cls()

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        def run(*args: Any, **options: Any) -> Any:
            self.acts.append("F")
            return function(*args, **options)

        return run


def acts_of_a_rank(flags: str) -> list[str]:
    trained(flags, Acting, FbdPlugin, steps=STEPS)
    return Acting.acts


def acts_of(case: Case) -> list[list[str]]:
    every = run_forked(case.ranks, acts_of_a_rank, case.asked)
    return [every[rank] for rank in case.roles.ranks(Role.FORWARD)]


def test_it_runs_before_the_step_is_said_but_not_behind_the_last_one() -> None:
    (forward,) = acts_of(Case(FLAGS, forward_pipeline=1))

    ahead = [*STEP[:1], "step 2", *STEP[1:], *STEP[:1], "step 3", *STEP[1:]]
    assert forward == ["step 1", *STEP, *ahead, "step 0"]


def test_it_does_not_run_behind_a_step_that_is_told_to_be_the_last() -> None:
    (forward,) = acts_of(Case(f"{FLAGS} --exit-interval 1", forward_pipeline=1))

    assert forward == ["step 1", *STEP, "step 0"]


def test_forward_stages_that_wait_for_each_other_begin_when_the_step_is_said() -> None:
    case = Case(FLAGS, forward_pipeline=2, linears=True)

    assert acts_of(case) == [["step 1", *STEP, "step 2", *STEP, "step 3", *STEP, "step 0"]] * 2
