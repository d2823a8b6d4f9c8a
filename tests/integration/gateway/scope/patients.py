"""A model that is served on several ranks, the Python client over it, and its weights for a forward pass by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import megatronapp.scope as client
from megatronapp.core.errors import NotFoundError
from megatronapp.core.scope.captures import Floats
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.conftest import PODS, address
from tests.support.plain_forward import Change, Shape, plain_forward
from tests.support.saved_weights import saved_weights
from tests.support.served_model import served_model

RUN = "run-that-serves"
TOLERANCE = 1e-5
"""Of the largest |value|, float32."""
Values = dict[tuple[str, int | None], Floats]


@dataclass
class Patient:
    served: Served
    model: client.Model
    weights: dict[str, Floats]
    shape: Shape

    def plain(self, ids: list[int], change: Change | None = None) -> Values:
        """By a forward pass in one process, [token, batch, …], or of scores and patterns [batch, head, query, key]."""
        return plain_forward(np.array([ids]), self.weights, self.shape, self.model.layers, change)


@asynccontextmanager
async def patient_on(
    ranks: int,
    layout: str,
    checkpoint: Path,
    shape: Shape,
    scope: Served,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Patient]:
    pids, token = folder / "pids", folder / "token"
    pids.mkdir()
    token.write_text(PODS)
    monkeypatch.setenv(GATEWAY_ADDRESS, address(scope))
    monkeypatch.setenv("MEGATRONAPP_TOKEN_FILE", str(token))
    weights = await asyncio.to_thread(saved_weights, checkpoint)
    environment = {GATEWAY_ADDRESS: address(scope), "MEGATRONAPP_RUN_ID": RUN, "MEGATRONAPP_JOB": "team/served"}
    serving = served_model(ranks, checkpoint, layout, pids, environment)
    await asyncio.to_thread(serving.__enter__)
    try:
        model = await _connected(scope, ranks)
        yield Patient(scope, model, weights, shape)
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)


async def _connected(scope: Served, ranks: int) -> client.Model:
    while True:
        try:
            model = await asyncio.to_thread(client.connect, scope.url, OPERATOR)
        except NotFoundError:  # no rank has come yet
            await asyncio.sleep(0.1)
            continue
        if len(model.ranks) == ranks:
            return model


def at(site: str, layer: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda name, number, value: change(value) if (name, number) == (site, layer) else value


def batch_first(site: str, value: Floats) -> Floats:
    return value if site in ("attn.probs", "attn.scores") else np.swapaxes(value, 0, 1)


def assert_close(found: Floats, expected: Floats, tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
