"""MegaScope on somebody's own script: it looks, disturbs and pauses as in our trainer, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Values, of_frame
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from megatronapp.v1 import scope_pb2
from tests.support.attached import SCRIPTS, Ended, run
from tests.support.pretrain import logged, pretrain, same_bits, weights
from tests.support.scope_gateway import ScopeGateway, scope_gateway

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAUSE, LEASE_SECONDS = "pause-at-once", 240.0
RANKS, STEPS = range(2), 12
LAST_REVISION = 2
PATIENCE_SECONDS = 240.0


def tap(number: int, expression: str) -> scope_pb2.ScopeTap:
    """At most a frame in 100 s: of a step before a pause it comes all the same."""
    return scope_pb2.ScopeTap(id=number, expression=expression, quantizer="f32", max_fps=0.01)


def values(frame: Frame) -> Any:
    result = of_frame(frame)
    assert isinstance(result, Values)
    return result.array


def of_tap(gateway: ScopeGateway, rank: int, number: int) -> list[Frame]:
    return [frame for frame in gateway.frames[rank] if frame.subscription == number]


def paused_before(gateway: ScopeGateway, running: Future[Ended]) -> int:
    """The step that comes next, when all ranks stand before it."""
    gateway.wait(lambda: all((rank, PAUSE) in gateway.acks for rank in RANKS) or running.done(), 2 * PATIENCE_SECONDS)
    assert not running.done(), running.result().output
    [step] = {ack.effective_step for ack in gateway.answers(PAUSE, RANKS)}
    gateway.wait(lambda: ("paused", step - 1) in gateway.states())
    return int(step)


@contextmanager
def going_on(gateway: ScopeGateway) -> Iterator[None]:
    """Nobody looks when this ends, and the ranks train on: also behind a failure, or they would wait for their lease's
    end."""
    try:
        yield
    finally:
        gateway.demand(LAST_REVISION, [], RANKS)
        gateway.train("resume", 0, RANKS, "resume")


def step_once(gateway: ScopeGateway, step: int) -> None:
    """All ranks run this step and stand behind it."""
    gateway.train("step", 0, RANKS, "step", steps=1, lease_seconds=LEASE_SECONDS)
    gateway.wait(lambda: ("paused", step) in gateway.states(), PATIENCE_SECONDS)


def check_kept(gateway: ScopeGateway, rank: int, number: int) -> None:
    gateway.wait(lambda: of_tap(gateway, rank, number), PATIENCE_SECONDS)
    length, wrong = values(of_tap(gateway, rank, number)[0])
    assert length > 0
    assert wrong == 0


def check_disturbed(gateway: ScopeGateway) -> None:
    """It is taken up by all ranks, and taken back before it has changed anything."""
    noise = scope_pb2.ScopePerturbation(place="system", kind="noise1", coefficient=0.5, layers="1")
    plan = scope_pb2.ScopePerturb(plan="noise", perturbations=[noise], seed=1)
    assert {ack.code for ack in gateway.command("noise", 1, RANKS, perturb=plan)} == {""}
    clear = scope_pb2.ScopePerturbClear()
    assert {ack.code for ack in gateway.command("clear", 0, RANKS, perturb_clear=clear)} == {""}


@pytest.mark.parametrize(
    ("layout", "layers", "microbatches", "kept"),
    [
        ("pipeline", 2, 4, {"weight": [0], "opt.exp_avg": [0]}),
        ("data", 4, 2, {"weight": [0, 1], "opt.exp_avg": [1]}),
        ("overlapped", 4, 2, {"opt.exp_avg": [1]}),  # its weights are elsewhere at a step's end
    ],
)
def test_pretrain_gpt_is_paused_watched_disturbed_and_stepped(
    shared_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    layers: int,
    microbatches: int,
    kept: dict[str, list[int]],
) -> None:
    """Layers and microbatches are each rank's. `kept`: the ranks that hold the first layer's, of the states of a
    distributed optimizer the last one. The losses and the weights are those of a run that nobody looked at."""
    monkeypatch.syspath_prepend(shared_data / "megatron_lm")
    plain = pretrain(shared_data, tmp_path / "plain", layout, STEPS)
    assert plain.code == 0, plain.output

    with scope_gateway() as (gateway, address), ThreadPoolExecutor(1) as pool:
        gateway.pause_at_once(PAUSE, 1, len(RANKS))
        attach = ["--job", "team/gpt", "--scope"]
        options: dict[str, Any] = {"attach": attach, "environment": {GATEWAY_ADDRESS: address}}
        running = pool.submit(pretrain, shared_data, tmp_path / "attached", layout, STEPS, **options)
        first = paused_before(gateway, running)
        with going_on(gateway):
            held = [f"layers[0].{kind}.mlp.linear_fc1.weight | stats(l2,nonfinite)" for kind in kept]
            taps = ["layers[*].resid_post", "layers[0].attn.probs | head(0)", *held]
            gateway.show(1, [tap(number, text) for number, text in enumerate(taps, 1)], RANKS)
            step_once(gateway, first)
            gateway.wait(
                lambda: all(len(of_tap(gateway, rank, 1)) == layers * microbatches for rank in RANKS), PATIENCE_SECONDS
            )
            assert {values(frame).shape for frame in of_tap(gateway, 0, 1)} == {(2, 16, 32)}
            gateway.wait(lambda: of_tap(gateway, 0, 2), PATIENCE_SECONDS)
            for number, ranks in enumerate(kept.values(), 3):
                for rank in ranks:
                    check_kept(gateway, rank, number)
            check_disturbed(gateway)
        attached = running.result()

    assert attached.code == 0, attached.output
    assert logged(attached) == logged(plain) != []
    assert same_bits(weights(tmp_path / "attached"), weights(tmp_path / "plain"))
    assert {tuple(hello.roles) for hello in gateway.hellos.values()} == {("train", "perturb")}


def test_a_frame_of_a_plain_loop_holds_what_its_layer_computed(tmp_path: Path) -> None:
    """Whose schedule says how large a microbatch is."""
    with scope_gateway() as (gateway, address), ThreadPoolExecutor(1) as pool:
        gateway.pause_at_once(PAUSE, 1, len(RANKS))
        arguments: list[Any] = [SCRIPTS / "megatron_core_loop.py", 8, 2, f"kept={tmp_path}"]
        running = pool.submit(run, *arguments, attach=["--scope"], environment={GATEWAY_ADDRESS: address})
        first = paused_before(gateway, running)
        with going_on(gateway):
            gateway.show(1, [tap(1, "layers[*].resid_post")], RANKS)
            step_once(gateway, first)
            gateway.wait(lambda: all(len(of_tap(gateway, rank, 1)) == 4 * 4 for rank in RANKS), PATIENCE_SECONDS)
        ended = running.result()

    assert ended.code == 0, ended.output
    for rank in RANKS:
        computed = torch.load(tmp_path / f"{rank}.pt")  # of the first layer, in each microbatch of each step
        shown = {frame.microbatch: values(frame) for frame in of_tap(gateway, rank, 1) if frame.layer == 0}
        assert shown.keys() == set(range(4))
        for microbatch, array in shown.items():
            assert np.array_equal(array, computed[(first - 1) * 4 + microbatch].transpose(0, 1).numpy())


def test_what_megascope_does_not_know_is_said_and_the_loop_trains(tmp_path: Path) -> None:
    plain = run(SCRIPTS / "ddp.py", 4)

    attached = run(SCRIPTS / "ddp.py", 4, attach=["--scope", "--trace-dir", str(tmp_path)])

    assert attached.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert sum("MegaScope is left out" in line for line in attached.said) == 1
