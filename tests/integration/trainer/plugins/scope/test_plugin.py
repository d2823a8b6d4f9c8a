"""The plug-in over the agent and a gateway: frames go up, commands come down, and the training is what it was."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from megatronapp.core.findings import Kind
from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Values, of_frame
from megatronapp.detector.engine import Engine
from megatronapp.detector.formats.tracefolder import find_attempts, read_messages
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.v1 import scope_pb2, trace_pb2
from tests.support.forked import run_forked
from tests.support.scope_gateway import ScopeGateway
from tests.support.scoped_job import run_plain, scoped_job
from tests.support.training import TINY

STEPS = 12


def tap(number: int, expression: str) -> scope_pb2.ScopeTap:
    """At most a frame in 100 s: of a step before a pause it comes all the same."""
    return scope_pb2.ScopeTap(id=number, expression=expression, quantizer="f32", max_fps=0.01)


def values(frame: Frame) -> Values:
    result = of_frame(frame)
    assert isinstance(result, Values)
    return result


LAYOUT = "--pipeline-model-parallel-size 2"
PAUSE_SECONDS = 2.5


def test_a_training_is_paused_watched_disturbed_and_stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DP 2 x PP 2. Nobody is woken for it, and the losses are those of a run that nobody looked at."""
    with scoped_job(4, f"{LAYOUT} --trace-dir {tmp_path}", monkeypatch, steps=STEPS) as job:
        gateway, ranks, first = job.gateway, job.ranks, job.paused_before()
        time.sleep(PAUSE_SECONDS)

        # Each rank shows its part of the step that is made, also who heard of it when others had taken it up.
        kept = (f"layers[0].{kind}.mlp.linear_fc1.weight | stats(l2,nonfinite)" for kind in ("weight", "opt.exp_avg"))
        taps = ["layers[*].resid_post", "layers[0].attn.probs | head(0)", *kept]
        gateway.show(1, [tap(number, text) for number, text in enumerate(taps, 1)], ranks)
        gateway.train("step", 0, ranks, "step", steps=1, lease_seconds=120)
        gateway.wait(lambda: ("paused", first) in gateway.states())
        shown = gateway.wait(lambda: _complete(gateway, ranks, first))
        assert {frame.layer for frame in (*shown[0], *shown[1])} == {0, 1}
        assert {frame.layer for frame in (*shown[2], *shown[3])} == {2, 3}
        assert values(shown[0][0]).array.shape == (2, 16, 32)
        attention = values(next(frame for frame in gateway.frames[0] if frame.subscription == 2))
        assert attention.masked is not None
        assert attention.masked[0].tolist() == np.triu(np.ones((16, 16), bool), 1).tolist()

        for number in (3, 4):  # a parameter and its first moments
            [[length, wrong]] = [values(frame).array for frame in gateway.frames[0] if frame.subscription == number]
            assert length > 0
            assert wrong == 0

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
    _assert_nobody_is_woken(tmp_path, first)


def test_weights_that_are_gathered_within_the_step_are_neither_shown_nor_disturbed_in_a_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the step begins there are those of the step before. A generation has them gathered."""
    layout = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 10000"
    with scoped_job(2, layout, monkeypatch, steps=STEPS) as job:
        job.paused_before()
        noise = scope_pb2.ScopePerturbation(place="storage", kind="noise1", coefficient=0.5, layers="1")
        plan = scope_pb2.ScopePerturb(plan="noise", perturbations=[noise], seed=1)
        refused = job.gateway.command("noise", 0, job.ranks, perturb=plan)
        job.gateway.train("resume", 0, job.ranks, "resume")
        job.done()
        sites = [site for hello in job.gateway.hellos.values() for site in hello.sites]

    shown = {(site.name, "generate" in site.passes) for site in sites if site.name.startswith("weight.")}
    assert ("weight.unembed", True) in shown
    assert not [name for name, generates in shown if not generates]
    assert {(ack.code, "--overlap-param-gather" in ack.hint) for ack in refused} == {("invalid", True)}


def _complete(gateway: ScopeGateway, ranks: range, step: int) -> dict[int, list[Frame]] | None:
    """By rank the frames of the residual of one step, once they are all there: 2 layers in 2 microbatches."""
    found = {
        rank: [frame for frame in gateway.frames[rank] if frame.subscription == 1 and frame.step == step]
        for rank in ranks
    }
    return found if all(len(frames) == 4 for frames in found.values()) else None


def _assert_nobody_is_woken(folder: Path, first: int) -> None:
    """What the ranks told of themselves, given to a detector whose patience with steps is moments."""
    [attempt] = find_attempts(folder)
    engine, hangs, paused, watched = Engine("run", attempt.job, 1), [], 0, set()
    for message in read_messages(attempt):
        hangs += [finding.summary for finding in engine.feed(message) if finding.kind is Kind.HANG]
        body = message.message
        paused += body.HasField("heartbeat") and body.heartbeat.phase == trace_pb2.PHASE_PAUSE
        if body.HasField("summary") and trace_pb2.PHASE_WATCHED in body.summary.phases:
            watched.add(body.summary.step)
    assert not hangs
    assert paused >= 4 * (PAUSE_SECONDS - 1)
    assert first in watched
    assert max(watched) < STEPS
