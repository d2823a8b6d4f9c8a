"""A checkpoint that is served: asked over `mscope.v1` and HTTP, watched token by token, steered and disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from megatronapp.core.generation import (
    Event,
    Finished,
    GenerationRequest,
    RowFinished,
    Sampling,
    Started,
    StateChanged,
    Stepped,
    Token,
)
from megatronapp.core.generation_json import event_from_json, to_json
from megatronapp.core.scope.frame import Frame, Section
from megatronapp.core.scope.results import Top, Values, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.conftest import PODS, Viewer, address, opened
from tests.integration.trainer.generate.models import trained
from tests.support.served_model import served_model

RUN = "run-that-serves"
LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
ASKED = GenerationRequest(
    prompts=("He said",),
    id="g",
    max_new_tokens=5,
    sampling=Sampling(temperature=0),
    stop_at_end_of_document=False,
    top_candidates=3,
)
PROMPT = len("He said")


@pytest.fixture
async def viewer(scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Viewer]:
    """An operator who looks at a model on two stages of two tensor ranks."""
    checkpoint, pids, token = tmp_path / "checkpoint", tmp_path / "pids", tmp_path / "token"
    pids.mkdir()
    token.write_text(PODS)
    monkeypatch.setenv(GATEWAY_ADDRESS, address(scope))
    monkeypatch.setenv("MEGATRONAPP_TOKEN_FILE", str(token))
    await asyncio.to_thread(trained, checkpoint)
    environment = {GATEWAY_ADDRESS: address(scope), "MEGATRONAPP_RUN_ID": RUN, "MEGATRONAPP_JOB": "team/served"}
    serving = served_model(4, checkpoint, LAYOUT, pids, environment)
    await asyncio.to_thread(serving.__enter__)
    try:
        viewer = await _joined(scope)
        while len((await viewer.text("description")).get("ranks", ())) < 4:
            pass
        yield viewer
        await viewer.socket.close()
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)


async def _joined(served: Served) -> Viewer:
    while True:
        viewer = Viewer(await opened(served, OPERATOR))
        try:
            await viewer.join(run=RUN)
        except ConnectionClosed:  # no rank has come yet
            await asyncio.sleep(0.1)
            continue
        return viewer


async def ask(viewer: Viewer, identifier: str, document: str) -> None:
    await viewer.send(command={"id": identifier, "generation": {"command": document}})


async def control(viewer: Viewer, action: str, request: str, **more: Any) -> None:
    document = {"type": "control", "action": action, "request": request, **more}
    await ask(viewer, f"{action} {request}", json.dumps(document))


async def events(viewer: Viewer, request: str, until: type[Event]) -> list[Event]:
    """Of a generation, to the first one of this kind."""
    found: list[Event] = []
    while not found or not isinstance(found[-1], until):
        said = (await viewer.event("generation"))["event"]["generation"]
        if said["request"] == request:
            found.append(event_from_json(said["event"]))
    return found


def tokens(found: Sequence[Event]) -> list[Token]:
    return [token for event in found if isinstance(event, Stepped) for token in event.tokens]


async def frames(viewer: Viewer, counts: dict[int, int]) -> dict[int, list[Frame]]:
    """So many of each subscription."""
    found: dict[int, list[Frame]] = {number: [] for number in counts}
    while any(len(found[number]) < count for number, count in counts.items()):
        frame = await viewer.frame()
        found[frame.subscription].append(frame)
    return found


async def test_a_served_checkpoint_is_asked_watched_steered_and_disturbed(scope: Served, viewer: Viewer) -> None:
    await viewer.subscribe(1, "layers[*].attn.q | batch(0) | last(1)", quantizer="f32", credits=999)
    await viewer.subscribe(2, "logits | batch(0) | last(1) | topk(3)", credits=999)
    await viewer.subscribe(3, "layers[3].resid_post | last(1) | logitlens(3)", credits=999)
    await viewer.subscribe(4, "layers[2].attn.probs | head(1) | batch(0)", quantizer="f32", credits=999)

    # Each token has its pass: its sites, its candidates, and what was drawn with which probability.
    await ask(viewer, "ask", to_json(ASKED))
    answered = await events(viewer, "g", Finished)
    drawn = tokens(answered)
    assert isinstance(answered[0], Started)
    assert [token.position for token in drawn] == list(range(PROMPT, PROMPT + 5))
    shown = await frames(viewer, {1: 4 * 5, 2: 5, 3: 5, 4: 5})
    for frame in (each for frames in shown.values() for each in frames):
        assert frame.missing_shards == 0
        assert frame.sections[Section.REQUEST] == b"g"
    for token, logits, lens in zip(drawn, shown[2], shown[3], strict=True):
        assert logits.step == lens.step == token.position - 1
        _assert_candidates(token, logits)
        _assert_candidates(token, lens)
    for frame, rows in zip(shown[4], (PROMPT, 1, 1, 1, 1), strict=True):
        chances = of_frame(frame)
        assert isinstance(chances, Values)
        assert chances.array.shape == (rows, frame.step + 1)
        np.testing.assert_allclose(np.nansum(chances.array, -1), 1, atol=1e-5)
    assert {(frame.layer, frame.dims) for frame in shown[1]} == {(layer, (1, 4, 8)) for layer in range(4)}
    for number in (1, 2, 3, 4):
        await viewer.send(unsubscribe={"id": number})

    # Steered: it stands until it is stepped, and ends when it is cancelled.
    await ask(viewer, "paused", to_json(_named("p", paused=True)))
    assert isinstance((await events(viewer, "p", StateChanged))[-1], StateChanged)
    await control(viewer, "step", "p", steps=2)
    assert [token.id for token in tokens(await events(viewer, "p", Stepped))] == [drawn[0].id]
    assert [token.id for token in tokens(await events(viewer, "p", Stepped))] == [drawn[1].id]
    await control(viewer, "cancel", "p")
    assert (await events(viewer, "p", Finished))[-1] == Finished(request="p", reason="cancelled")

    # Disturbed, and whole again.
    noise = {"place": "storage", "kind": "noise1", "coefficient": 3.0}
    assert await _texts(viewer, "d", {"perturb": {"plan": "n", "perturbations": [noise]}}) != _text(answered)
    assert await _texts(viewer, "c", {"perturbClear": {}}) == _text(answered)

    # The same text over HTTP.
    async with scope.client(OPERATOR) as client:
        body = {"prompts": ["He said"], "tokens_to_generate": 5, "top_k": 1}
        assert (await client.put("/api", json=body)).json()["text"] == [f"He said{_text(answered)}"]
        refused = await client.put("/api", json={**body, "tokens_to_generate": 5000})
    assert (refused.status_code, "this model takes 64 in all" in refused.text) == (422, True)


def _named(name: str, **more: Any) -> GenerationRequest:
    from dataclasses import replace

    return replace(ASKED, id=name, **more)


def _text(found: Sequence[Event]) -> str:
    return next(event.text for event in found if isinstance(event, RowFinished))


async def _texts(viewer: Viewer, name: str, command: dict[str, Any]) -> str:
    """What is generated after this command."""
    await viewer.send(command={"id": f"command {name}", "reason": "a test", **command})
    result = await viewer.text("result", command=f"command {name}")
    assert not result["ack"].get("code"), result
    await ask(viewer, f"ask {name}", to_json(_named(name)))
    return _text(await events(viewer, name, Finished))


def _assert_candidates(token: Token, frame: Frame) -> None:
    """The frame's candidates are those that the event tells, the first of them was drawn."""
    top = of_frame(frame)
    assert isinstance(top, Top)
    assert top.indexes.reshape(-1).tolist() == [each.id for each in token.candidates]
    assert token.id == token.candidates[0].id
    chances = top.values.reshape(-1) - top.log_sum_exp.reshape(-1)
    np.testing.assert_allclose(chances, [each.log_probability for each in token.candidates], atol=1e-4)
