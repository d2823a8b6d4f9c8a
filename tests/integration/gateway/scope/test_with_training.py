"""A training that a viewer looks into, steers and asks for text, over its agent and the gateway: nothing between is
made up, and the training is what it is without."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from megatronapp.core.generation import Finished, GenerationRequest, Stepped, Token
from megatronapp.core.generation_json import event_from_json, to_json
from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Top, Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.conftest import PODS, Viewer, address, opened
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.saes import features_of, random_weights, written
from tests.support.scoped_job import run_plain, run_scoped
from tests.support.training import TINY

pytestmark = pytest.mark.long

STEPS = 60
LAYOUT = "--tensor-model-parallel-size 2 --sequence-parallel --hidden-dropout 0.1"
FLAGS = f"{TINY} --train-iters {STEPS} {LAYOUT}"
RUN = "run-of-a-training"
SAE = random_weights(32, 80)


@pytest.fixture
def training(scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two tensor ranks; yields the future of their losses."""
    token = tmp_path / "token"
    token.write_text(PODS)
    monkeypatch.setenv(GATEWAY_ADDRESS, address(scope))
    monkeypatch.setenv("MEGATRONAPP_TOKEN_FILE", str(token))
    with agent() as environment, ThreadPoolExecutor(1) as pool:
        written(tmp_path / "saes" / "middle", SAE, "blocks.1.hook_resid_mid")
        flags = f"{FLAGS} --scope --scope-sae-dir {tmp_path / 'saes'}"
        environment |= {GATEWAY_ADDRESS: address(scope), "MEGATRONAPP_RUN_ID": RUN}
        yield pool.submit(run_forked, 2, run_scoped, flags, environment=environment, timeout=110)


async def joined(served: Served, training: Future[Any]) -> Viewer:
    """An operator, as soon as the gateway knows the run."""
    while not training.done():
        socket = await opened(served, OPERATOR)
        viewer = Viewer(socket)
        try:
            await viewer.join(run=RUN)
        except ConnectionClosed:  # it does not know the run yet
            await asyncio.sleep(0.1)
            continue
        return viewer
    training.result()
    raise AssertionError("the training ended before anybody could look")


async def command(viewer: Viewer, identifier: str, **action: Any) -> None:
    await viewer.send(command={"id": identifier, "reason": "a test", **action})
    result = await viewer.text("result", command=identifier)
    while result.get("answered", 0) < result["ranks"]:
        assert not result.get("ack", {}).get("code"), result
        result = await viewer.text("result", command=identifier)


async def test_a_viewer_pauses_looks_and_steps(scope: Served, training: Future[Any]) -> None:
    viewer = await joined(scope, training)
    await viewer.send(control={"do": "request"})
    await command(viewer, "pause", train={"do": "pause", "leaseSeconds": 60})

    statistics = await viewer.subscribe(1, "layers[*].resid_post | stats(mean,nonfinite)", quantizer="f32", credits=99)
    await viewer.subscribe(2, "logits | batch(0) | last(1) | topk(5)", credits=99)
    await viewer.subscribe(3, "layers[1].attn.q | batch(0)", quantizer="f32", credits=99)
    await viewer.subscribe(7, "layers[1].resid_mid | batch(0)", quantizer="f32", credits=99)
    await viewer.subscribe(8, "layers[1].sae.middle | batch(0)", quantizer="f32", credits=99)
    await viewer.subscribe(5, "layers[1].weight.mlp.linear_fc1.weight", quantizer="f32", credits=99)
    await viewer.subscribe(6, "layers[1].opt.exp_avg.mlp.linear_fc2.weight", quantizer="f32", credits=99)
    await command(viewer, "step", train={"do": "step", "steps": 1, "leaseSeconds": 60})

    shown: dict[int, Frame] = {}  # a viewer gets the newest pictures, not all of them
    while set(shown) != {1, 2, 3, 5, 6, 7, 8}:
        frame = await viewer.frame()
        shown[frame.subscription] = frame
    assert {(frame.step, frame.missing_shards) for frame in shown.values()} == {(shown[1].step, 0)}
    assert statistics["statistics"] == ["mean", "nonfinite"]
    result = of_frame(shown[1])
    assert isinstance(result, Values)
    assert np.isfinite(result.array).all()
    assert result.array[1] == 0
    candidates = of_frame(shown[2])
    assert isinstance(candidates, Top)
    assert candidates.indexes.shape == (1, 5)
    queries = of_frame(shown[3])
    assert isinstance(queries, Values)
    assert queries.array.shape == (16, 4, 8)
    assert queries.missing is None

    assert [shown[number].dims for number in (5, 6)] == [(128, 32), (32, 128)]  # of both tensor ranks
    assert all(np.abs(of_frame(shown[number]).array).min(1).all() for number in (5, 6))  # type: ignore[union-attr]

    rows, features = (of_frame(shown[number]) for number in (7, 8))  # of tokens that sequence parallelism splits
    assert isinstance(rows, Values)
    assert isinstance(features, Values)
    expected = features_of(rows.array, SAE)
    np.testing.assert_allclose(features.array, expected, rtol=0, atol=1e-5 * expected.max())

    # Text of the model as it is now, from within the pause, and what is seen of it.
    await viewer.subscribe(4, "layers[1].attn.q | batch(0) | last(1)", quantizer="f32", credits=99, request="g")
    request = GenerationRequest(
        prompts=("He said",), id="g", max_new_tokens=3, stop_at_end_of_document=False, top_candidates=2
    )
    await command(viewer, "ask", generation={"command": to_json(request)})
    drawn: list[Token] = []
    while True:
        event = event_from_json((await viewer.event("generation"))["event"]["generation"]["event"])
        if isinstance(event, Stepped):
            drawn += event.tokens
        elif isinstance(event, Finished):
            break
    assert event == Finished(request="g", reason="done")
    assert [len(token.candidates) for token in drawn] == [2, 2, 2]
    seen: list[Frame] = []
    while len(seen) < 3:  # the others show whatever runs
        seen += [frame for frame in [await viewer.frame()] if frame.subscription == 4]
    assert [(frame.step, frame.dims, frame.missing_shards) for frame in seen] == [
        (token.position - 1, (1, 4, 8), 0) for token in drawn
    ]

    await command(viewer, "resume", train={"do": "resume"})
    await viewer.socket.close()
    losses = await asyncio.wrap_future(training)
    assert losses == await asyncio.to_thread(run_forked, 2, run_plain, FLAGS)
