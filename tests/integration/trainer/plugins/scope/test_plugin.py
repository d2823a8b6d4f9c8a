"""The plug-in over the agent and a gateway: frames go up, commands come down, and the training is what it was."""

from __future__ import annotations

import pytest

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.v1 import scope_pb2
from tests.support.forked import run_forked
from tests.support.scope_gateway import ScopeGateway
from tests.support.scoped_job import run_plain, scoped_job
from tests.support.training import TINY

STEPS = 24


def tap(number: int, expression: str) -> scope_pb2.ScopeTap:
    return scope_pb2.ScopeTap(id=number, expression=expression, quantizer="f32")


def values(frame: Frame) -> Values:
    result = of_frame(frame)
    assert isinstance(result, Values)
    return result


LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"


def test_a_training_is_paused_watched_disturbed_and_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    with scoped_job(4, LAYOUT, monkeypatch, steps=STEPS) as job:
        gateway, ranks, first = job.gateway, job.ranks, job.paused_before()

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
        losses = job.done()

    assert losses == run_forked(4, run_plain, f"{TINY} --train-iters {STEPS} {LAYOUT}")[-1]


def _complete(gateway: ScopeGateway, ranks: range, step: int) -> dict[int, list[Frame]] | None:
    """By rank the frames of the residual of one step, once they are all there: 2 layers in 4 microbatches."""
    found = {
        rank: [frame for frame in gateway.frames[rank] if frame.subscription == 1 and frame.step == step]
        for rank in ranks
    }
    return found if all(len(frames) == 8 for frames in found.values()) else None
