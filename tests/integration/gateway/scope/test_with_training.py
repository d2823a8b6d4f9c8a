"""A training that a viewer looks into and steers, over its agent and the gateway: nothing between is made up."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.results import Top, Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.conftest import PODS, Viewer, address, opened
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.scoped_job import run_scoped
from tests.support.training import TINY

STEPS = 100
LAYOUT = "--tensor-model-parallel-size 2 --sequence-parallel"
RUN = "run-of-a-training"


@pytest.fixture
def training(scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two tensor ranks; yields the future of their losses."""
    token = tmp_path / "token"
    token.write_text(PODS)
    monkeypatch.setenv(GATEWAY_ADDRESS, address(scope))
    monkeypatch.setenv("MEGATRONAPP_TOKEN_FILE", str(token))
    with agent() as environment, ThreadPoolExecutor(1) as pool:
        environment |= {GATEWAY_ADDRESS: address(scope), "MEGATRONAPP_RUN_ID": RUN}
        flags = f"{TINY} --train-iters {STEPS} {LAYOUT} --scope"
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
    await command(viewer, "step", train={"do": "step", "steps": 1, "leaseSeconds": 60})

    shown: dict[int, Frame] = {}  # a viewer gets the newest pictures, not all of them
    while set(shown) != {1, 2, 3}:
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

    await command(viewer, "resume", train={"do": "resume"})
    await viewer.socket.close()
    losses = await asyncio.wrap_future(training)
    assert len(losses[-1]) == STEPS
