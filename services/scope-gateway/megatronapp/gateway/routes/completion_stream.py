"""A completion as it grows: server-sent events, each a chunk as OpenAI's API has them, `[DONE]` the last one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.generation import Event, RowFinished, Started, Stepped, Token
from megatronapp.gateway.completion_models import (
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionRequest,
)

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Streamed:
    """What each chunk says of its completion."""

    id: str
    created: int
    model: str


async def streamed(
    about: Streamed, body: CompletionRequest, first: Event, rest: AsyncIterator[Event]
) -> AsyncIterator[str]:
    """The events of a response. Closed before its end, as when who asked has left, it closes `rest`."""
    async with aclosing(rest):  # type: ignore[type-var]
        try:
            for choice in _choices(first, body):
                yield _event(about, choice)
            async for event in rest:
                for choice in _choices(event, body):
                    yield _event(about, choice)
        except MegatronAppError as error:
            yield f"data: {json.dumps({'error': {'message': str(error)}})}\n\n"
            return
        yield "data: [DONE]\n\n"


def _event(about: Streamed, choice: CompletionChunkChoice) -> str:
    chunk = CompletionChunk(id=about.id, created=about.created, model=about.model, choices=[choice])
    return f"data: {chunk.model_dump_json()}\n\n"


def _choices(event: Event, body: CompletionRequest) -> list[CompletionChunkChoice]:
    match event:
        case Started(rows=rows) if body.echo:
            return [
                CompletionChunkChoice(text="".join(token.text for token in row), index=number)
                for number, row in enumerate(rows)
            ]
        case Stepped(tokens=tokens):
            shown = [token for token in tokens if token.origin != "prompt" or body.echo]
            return [
                CompletionChunkChoice(
                    text=token.delta, index=token.row, logprobs=None if body.logprobs is None else logprobs_of([token])
                )
                for token in shown
            ]
        case RowFinished(row=row, reason=reason):
            return [CompletionChunkChoice(text="", index=row, finish_reason="length" if reason == "length" else "stop")]
        case _:
            return []


def logprobs_of(tokens: Sequence[Token]) -> CompletionLogprobs:
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token.text)
    return CompletionLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[token.log_probability for token in tokens],
        top_logprobs=[
            {candidate.text: candidate.log_probability for candidate in token.candidates} for token in tokens
        ],
        text_offset=offsets,
    )
