"""A rank that generates answers Megatron-LM's text-generation API and OpenAI's completions."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from megatronapp.core.generation import (
    Candidate,
    Control,
    Event,
    Finished,
    GenerationRequest,
    RowFinished,
    Started,
    Stepped,
    Token,
)
from megatronapp.core.generation_json import command_from_json, to_json
from megatronapp.v1 import scope_pb2
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served
from tests.integration.gateway.scope.conftest import address
from tests.support.scope_pods import FakeRank, attached, ranks


def echo(request: GenerationRequest) -> list[Event]:
    """A model that adds " la" as often as asked, each with probability e⁻¹."""
    prompts = [str(prompt) for prompt in request.prompts]
    given = tuple((Token(row=row, position=0, id=1, text=text, origin="prompt"),) for row, text in enumerate(prompts))
    events: list[Event] = [Started(request=request.id, rows=given)]
    candidates = (Candidate(id=2, text=" la", log_probability=-1.0),) if request.top_candidates else ()
    for step in range(request.max_new_tokens):
        tokens = tuple(
            Token(
                row=row,
                position=step + 1,
                id=2,
                text=" la",
                delta=" la",
                origin="sampled",
                log_probability=-1.0,
                candidates=candidates,
            )
            for row in range(len(prompts))
        )
        events.append(Stepped(request=request.id, step=step + 1, tokens=tokens))
    text = " la" * request.max_new_tokens
    ends = [RowFinished(request=request.id, row=row, reason="length", text=text) for row in range(len(prompts))]
    return [*events, *ends, Finished(request=request.id, reason="done")]


async def say(rank: FakeRank, events: Sequence[Event]) -> None:
    for event in events:
        body = scope_pb2.ScopeGenerationEvent(event=to_json(event), request=event.request)
        await rank.event(generation=body)


async def answer(rank: FakeRank) -> None:
    """Each request, as it comes; controls are kept."""
    done = 0
    while True:
        await rank.commanded(done + 1)
        command = command_from_json(rank.commands[done].generation.command)
        done += 1
        if isinstance(command, GenerationRequest):
            refused = "" if command.sampling.top_k < 1000 else "top_k is beyond this model"
            finished = Finished(request=command.id, reason="refused", message=refused)
            await say(rank, [finished] if refused else echo(command))


@asynccontextmanager
async def serving(served: Served) -> AsyncIterator[FakeRank]:
    pods = ranks(tensor=1, pipeline=1)
    async with attached(address(served), pods), asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(answer(pods[0]))
        yield pods[0]
        answering.cancel()


async def test_megatrons_text_generation_api(scope: Served) -> None:
    async with serving(scope) as rank, scope.client(OPERATOR) as client:
        body = {"prompts": ["Once", "Then"], "tokens_to_generate": 2, "logprobs": True, "add_BOS": True, "no_log": 1}
        answered = await client.put("/api", json=body)

    command = command_from_json(rank.commands[0].generation.command)
    assert isinstance(command, GenerationRequest)
    assert command.add_bos
    assert command.sampling.top_p == 1.0
    assert answered.json() == {
        "text": ["Once la la", "Then la la"],
        "segments": [["Once", " la", " la"], ["Then", " la", " la"]],
        "logprobs": [[-1.0, -1.0], [-1.0, -1.0]],
    }


async def test_openais_completions_with_logprobs(scope: Served) -> None:
    async with serving(scope), scope.client(OPERATOR) as client:
        body = {"model": "team/gpt", "prompt": "Once", "max_tokens": 2, "logprobs": 1, "echo": True, "user": "me"}
        answered = (await client.post("/v1/completions", json=body)).json()

    (choice,) = answered["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once la la", "length")
    assert choice["logprobs"] == {
        "tokens": ["Once", " la", " la"],
        "token_logprobs": [None, -1.0, -1.0],
        "top_logprobs": [{}, {" la": -1.0}, {" la": -1.0}],
        "text_offset": [0, 4, 7],
    }
    assert answered["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


async def test_openais_completions_as_they_grow(scope: Served) -> None:
    async with serving(scope), scope.client(OPERATOR) as client:
        body = {"prompt": "Once", "max_tokens": 2, "stream": True, "echo": True}
        async with client.stream("POST", "/v1/completions", json=body) as answered:
            lines = [line async for line in answered.aiter_lines() if line]
        refused = await client.post("/v1/completions", json={**body, "top_k": 5000})

    assert answered.headers["content-type"].startswith("text/event-stream")
    *chunks, end = [line.removeprefix("data: ") for line in lines]
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("Once", None),
        (" la", None),
        (" la", None),
        ("", "length"),
    ]
    assert end == "[DONE]"
    assert refused.status_code == 422


async def test_who_leaves_in_the_middle_has_the_generation_cancelled(scope: Served) -> None:
    pods = ranks(tensor=1, pipeline=1)
    async with attached(address(scope), pods), scope.client(OPERATOR) as client, asyncio.TaskGroup() as tasks:

        async def begin() -> str:
            await pods[0].commanded()
            command = command_from_json(pods[0].commands[0].generation.command)
            assert isinstance(command, GenerationRequest)
            await say(pods[0], echo(command)[:2])
            return command.id

        beginning = tasks.create_task(begin())
        async with client.stream("POST", "/v1/completions", json={"prompt": "Once", "stream": True}) as answered:
            await anext(answered.aiter_lines())
        await pods[0].commanded(2)

    cancelled = command_from_json(pods[0].commands[1].generation.command)
    assert cancelled == Control(action="cancel", request=beginning.result())


async def test_what_the_model_refuses_is_told(scope: Served) -> None:
    async with serving(scope), scope.client(OPERATOR) as client:
        answered = await client.put("/api", json={"prompts": ["a"], "top_k": 5000})

    assert answered.status_code == 422
    assert "beyond this model" in answered.json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"prompts": []}, {"prompts": [""]}, {"prompts": ["a"], "tokens_to_generate": -1}])
async def test_a_request_without_sense_is_refused_before(scope: Served, body: dict[str, object]) -> None:
    async with serving(scope) as rank, scope.client(OPERATOR) as client:
        answered = await client.put("/api", json=body)

    assert answered.status_code == 422
    assert not rank.commands


async def test_a_viewer_generates_nothing(scope: Served) -> None:
    async with serving(scope) as rank, scope.client(VIEWER) as client:
        answers = [
            await client.put("/api", json={"prompts": ["a"]}),
            await client.post("/v1/completions", json={"prompt": "a"}),
        ]

    assert [answered.status_code for answered in answers] == [403, 403]
    assert not rank.commands


async def test_without_a_model_it_is_said_what_to_start(scope: Served) -> None:
    async with scope.client(OPERATOR) as client:
        answered = await client.put("/api", json={"prompts": ["a"]})

    assert answered.status_code == 404
    assert "megatronapp serve" in answered.json()["error"]["message"]


async def test_who_leaves_before_the_end_has_it_cancelled(scope: Served) -> None:
    async with attached(address(scope), ranks(tensor=1, pipeline=1)) as pods:
        async with scope.client(OPERATOR) as client:
            asking = asyncio.create_task(client.put("/api", json={"prompts": ["a"]}))
            await pods[0].commanded()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await pods[0].commanded(2)

    request, control = (command_from_json(command.generation.command) for command in pods[0].commands)
    assert isinstance(request, GenerationRequest)
    assert control == Control(action="cancel", request=request.id)


async def test_a_rank_that_leaves_ends_it_with_an_error(scope: Served) -> None:
    pods = ranks(tensor=1, pipeline=1)
    pods[0].refuse = "failed"
    async with attached(address(scope), pods), scope.client(OPERATOR) as client:
        answered = await client.put("/api", json={"prompts": ["a"]})

    assert answered.status_code == 503
