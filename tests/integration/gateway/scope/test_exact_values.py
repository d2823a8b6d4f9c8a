"""What a viewer is shown in eight bits is to be had exactly, from the rank's agent, while the model stands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from megatronapp.core.scope.frame import Dtype, Section, pack
from megatronapp.core.scope.quantize import Values, decode
from megatronapp.core.scope.results import to_frame
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.scope_stream import ScopeStream
from megatronapp.trainer.agent.stream import StreamLoop
from megatronapp.v1 import scope_pb2
from tests.integration.gateway.conftest import Served
from tests.integration.gateway.scope.conftest import PODS, address, viewing
from tests.support.scope_pods import ranks

SITE = "layers[*].mlp.out | batch(0)"
TOKENS, CHANNELS = 8, 16


async def test_the_exact_values_of_a_picture_come_on_request(scope: Served, tmp_path: Path) -> None:
    given = np.random.default_rng(5).normal(size=(TOKENS, CHANNELS)).astype(np.float32)
    given[0, 0], given[1, 1], given[2, 2] = np.nan, np.inf, -np.inf
    with agent(scope, tmp_path) as (stream, demands):
        await scope.until("/api/v1/scope/models", bool)
        async with viewing(scope) as viewer:
            await viewer.subscribe(1, SITE)
            [tap] = (await demanded(demands, 1)).taps
            for layer in (0, 1):
                stream.put_frame(tap.id, frame(given + layer, tap.id, layer))
            shown = [await viewer.frame() for _ in (0, 1)]
            answer = await viewer.subscribe(2, SITE, quantizer="f32")
            exact = [await viewer.frame() for _ in (0, 1)]

    assert [(each.subscription, each.dtype) for each in shown] == [(1, Dtype.I8)] * 2
    assert answer["quantizer"] == "f32"
    assert [(each.subscription, each.layer, each.step) for each in exact] == [(2, 0, 7), (2, 1, 7)]
    for layer, each in enumerate(exact):
        np.testing.assert_array_equal(decode(each).array, given + layer)


def frame(array: np.ndarray, tap: int, layer: int) -> bytes:  # type: ignore[type-arg]
    """As a rank writes it."""
    made = to_frame(Values(array), "f32")
    extents = np.array([2, TOKENS, CHANNELS], "<u4").tobytes()
    sections = {**made.sections, Section.EXTENT: extents}
    return pack(replace(made, subscription=tap, step=7, layer=layer, microbatch=0, sections=sections))


@contextmanager
def agent(scope: Served, folder: Path) -> Iterator[tuple[ScopeStream, asyncio.Queue[scope_pb2.ScopeDemand]]]:
    """The stream of the one rank of a model, as its agent keeps it."""
    (folder / "token").write_text(PODS)
    [rank] = ranks(tensor=1, pipeline=1)
    here, demands = asyncio.get_running_loop(), asyncio.Queue[scope_pb2.ScopeDemand]()

    def keep_demand(message: scope_pb2.ScopeDown) -> None:
        if message.HasField("demand"):
            here.call_soon_threadsafe(demands.put_nowait, message.demand)

    with closing(StreamLoop()) as loop:
        access = Access(token_file=str(folder / "token"), gateway_address=address(scope))
        stream = ScopeStream(address(scope), rank.hello, keep_demand, lambda: None, loop, access)
        try:
            yield stream, demands
        finally:
            stream.close(5.0)


async def demanded(demands: asyncio.Queue[scope_pb2.ScopeDemand], taps: int) -> scope_pb2.ScopeDemand:
    async with asyncio.timeout(60):
        while len((demand := await demands.get()).taps) != taps:
            pass
    return demand
