"""A training that a viewer looks into, steers and asks for text, over its agent and the gateway: nothing between is
made up, and the training is what it is without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatronapp.core.generation import Finished, GenerationRequest, Stepped, Token
from megatronapp.core.generation_json import event_from_json, to_json
from megatronapp.core.scope.frame import Frame, Section
from megatronapp.core.scope.results import Top, Values, of_frame
from megatronapp.core.scope.token_texts import unpack_texts
from megatronapp.scope.model import WatchedTokens, connect
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.data.tokenizers import ByteTokenizer
from tests.integration.gateway.conftest import Served
from tests.integration.gateway.scope.conftest import OPERATOR, RUN, Trains, Viewer, command, joined, newest
from tests.support.forked import run_forked
from tests.support.saes import features_of, random_weights, written
from tests.support.scoped_job import run_plain
from tests.support.training import TINY

pytestmark = pytest.mark.long

STEPS = 60
LAYOUT = "--tensor-model-parallel-size 2 --sequence-parallel --hidden-dropout 0.1"
FLAGS = f"{TINY} --train-iters {STEPS} {LAYOUT}"
SAE = random_weights(32, 80)


@pytest.fixture
def training(trains: Trains, tmp_path: Path) -> Iterator[Future[Any]]:
    """Two tensor ranks; the future of their losses."""
    written(tmp_path / "saes" / "middle", SAE, "blocks.1.hook_resid_mid")
    with trains(f"{FLAGS} --scope --scope-sae-dir {tmp_path / 'saes'}") as losses:
        yield losses


SHOWN = {
    1: "layers[*].resid_post | stats(mean,nonfinite)",
    2: "logits | batch(0) | last(1) | topk(5)",
    3: "layers[1].attn.q | batch(0)",
    5: "layers[1].weight.mlp.linear_fc1.weight",
    6: "layers[1].opt.exp_avg.mlp.linear_fc2.weight",
    7: "layers[1].resid_mid | batch(0)",
    8: "layers[1].sae.middle | batch(0)",
    9: "tokens | batch(0)",
}
REQUEST = GenerationRequest(
    prompts=("He said",), id="g", max_new_tokens=3, stop_at_end_of_document=False, top_candidates=2
)


async def test_a_viewer_pauses_looks_and_steps(scope: Served, training: Future[Any]) -> None:
    viewer = await joined(scope, training)
    await viewer.send(control={"do": "request"})
    await command(viewer, "pause", train={"do": "pause", "leaseSeconds": 60})
    told = {number: await viewer.subscribe(number, each, quantizer="f32", credits=99) for number, each in SHOWN.items()}
    await command(viewer, "step", train={"do": "step", "steps": 1, "leaseSeconds": 60})

    pictures = await newest(viewer, set(SHOWN))
    check_pictures(pictures)
    client = await asyncio.to_thread(connect, scope.url, OPERATOR, RUN)
    check_tokens(await asyncio.to_thread(client.watched_tokens), pictures[9])
    assert told[1]["statistics"] == ["mean", "nonfinite"]
    await check_text_from_within_the_pause(viewer)

    await command(viewer, "resume", train={"do": "resume"})
    await viewer.socket.close()
    losses = await asyncio.wrap_future(training)
    assert losses == await asyncio.to_thread(run_forked, 2, run_plain, FLAGS)


def check_pictures(shown: dict[int, Frame]) -> None:
    """Of one step, of both tensor ranks, as they must be."""
    assert {(frame.step, frame.missing_shards) for frame in shown.values()} == {(shown[1].step, 0)}
    found = {number: of_frame(frame) for number, frame in shown.items()}
    arrays = {number: result.array for number, result in found.items() if isinstance(result, Values)}
    assert np.isfinite(arrays[1]).all()
    assert arrays[1][1] == 0
    texts = unpack_texts(shown[9].sections[Section.TOKEN_TEXTS])
    assert arrays[9].shape == (16,)
    assert [texts[int(token)] for token in arrays[9]] == [spelled(int(token)) for token in arrays[9]]
    assert isinstance(found[2], Top)
    assert found[2].indexes.shape == (1, 5)
    assert arrays[3].shape == (16, 4, 8)
    assert [arrays[number].shape for number in (5, 6)] == [(128, 32), (32, 128)]
    assert all(np.abs(arrays[number]).min(1).all() for number in (5, 6))
    expected = features_of(arrays[7], SAE)  # of tokens that sequence parallelism splits
    np.testing.assert_allclose(arrays[8], expected, rtol=0, atol=1e-5 * expected.max())


def check_tokens(tokens: WatchedTokens, picture: Frame) -> None:
    """The Python client's, of the step's last microbatch."""
    assert (tokens.step, tokens.microbatch) == (picture.step, 3)
    assert tokens.texts == [spelled(token) for token in tokens.ids]


def spelled(token: int) -> str:
    """As bytes are tokens here."""
    return chr(token) if 32 <= token < 127 or token in b"\n\r\t" else ByteTokenizer().piece(token)


async def check_text_from_within_the_pause(viewer: Viewer) -> None:
    """Of the model as it is now, and what is seen of it."""
    await viewer.subscribe(4, "layers[1].attn.q | batch(0) | last(1)", quantizer="f32", credits=99, request="g")
    await command(viewer, "ask", generation={"command": to_json(REQUEST)})
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
