"""Data-parallel replicas of a real training side by side: which one computes otherwise, and from which layer on."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from megatronapp.core.scope.results import Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.integration.gateway.conftest import Served
from tests.integration.gateway.scope.conftest import Trains, Viewer, command, joined
from tests.support.training import TINY

pytestmark = pytest.mark.long

LAYERS = 4
WRONG = 1
FACTOR = 8.0
PLAN = {
    "plan": "broken",
    "replica": WRONG,
    "perturbations": [
        {"place": "calculation", "site": "mlp.out", "kind": "scale", "coefficient": FACTOR, "layers": "1"}
    ],
}


async def spreads(viewer: Viewer, number: int, expression: str) -> list[npt.NDArray[Any]]:
    """Of each layer [replica, statistic], after one more step."""
    await viewer.subscribe(number, expression, quantizer="f32", credits=99)
    await command(viewer, f"step-{number}", train={"do": "step", "steps": 1, "leaseSeconds": 60})
    found: dict[int | None, npt.NDArray[Any]] = {}
    while len(found) < LAYERS:
        frame = await viewer.frame()
        result = of_frame(frame)
        assert isinstance(result, Values)
        assert frame.missing_shards == 0
        found[frame.layer] = result.array
    await viewer.send(unsubscribe={"id": number})
    return [found[layer] for layer in range(LAYERS)]


async def test_the_replica_that_computes_otherwise_is_seen_and_weights_agree(scope: Served, trains: Trains) -> None:
    with trains(f"{TINY} --train-iters 60 --scope") as training:
        viewer = await joined(scope, training)
        await viewer.send(control={"do": "request"})
        await command(viewer, "pause", train={"do": "pause", "leaseSeconds": 60})
        before = await spreads(viewer, 1, "layers[*].mlp.out | stats(std) | replicas")
        await command(viewer, "disturb", perturb=PLAN)
        during = await spreads(viewer, 2, "layers[*].mlp.out | stats(std) | replicas")
        weights = await spreads(viewer, 3, "layers[*].weight.mlp.linear_fc1.weight | stats(l2,absmax) | replicas")
        await end(viewer, training)

    assert [layer.shape for layer in before] == [(2, 1)] * LAYERS
    assert ratios(before) == pytest.approx([1.0] * LAYERS, rel=0.3)
    assert ratios(during)[:2] == pytest.approx([1.0, FACTOR], rel=0.3)
    assert all(np.array_equal(layer[0], layer[1]) for layer in weights)


def ratios(layers: list[npt.NDArray[Any]]) -> list[float]:
    return [float(layer[WRONG, 0] / layer[0, 0]) for layer in layers]


async def end(viewer: Viewer, training: Future[Any]) -> None:
    await command(viewer, "clear", perturbClear={})
    await command(viewer, "resume", train={"do": "resume"})
    await viewer.socket.close()
