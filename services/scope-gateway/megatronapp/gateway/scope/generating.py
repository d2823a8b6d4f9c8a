"""A generation from its request to its end, for whoever waits for all of it: the text-generation APIs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace

from megatronapp.core.errors import DataError, UnavailableError, UsageError
from megatronapp.core.generation import Control, Event, Finished, GenerationRequest
from megatronapp.core.generation_json import event_from_json, to_json
from megatronapp.core.generation_rows import Row, take
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.sessions import Session
from megatronapp.v1 import scope_pb2

MAX_WAITING_EVENTS = 100_000


async def events_of(session: Session, request: GenerationRequest, by: str, reason: str = "") -> AsyncIterator[Event]:
    """Ask the run's ranks and yield what comes, to the end. Closed before it, the generation is cancelled. Raises
    UsageError for what the model refuses, UnavailableError where nobody can generate or it fails."""
    asked = replace(request, id=request.id or f"api-{secrets.token_hex(8)}")
    queue: asyncio.Queue[Event | Exception] = asyncio.Queue(MAX_WAITING_EVENTS)
    stop_listening = session.listen(lambda event: _queue(queue, asked.id, event))
    ended = False
    try:
        _send(session, by, to_json(asked), queue, reason)
        while not ended:
            event = await queue.get()
            if isinstance(event, Exception):
                ended = True
                raise event
            if isinstance(event, Finished):
                ended = True
                _check(event)
            yield event
    finally:
        stop_listening()
        if not ended:
            _cancel(session, by, asked.id)


async def generate(session: Session, request: GenerationRequest, by: str, reason: str = "") -> list[Row]:
    """All of it, a row a prompt. Raises as `events_of`."""
    rows = [Row() for _ in request.prompts]
    async with aclosing(events_of(session, request, by, reason)) as events:  # type: ignore[type-var]
        async for event in events:
            take(rows, event)
    return rows


def _queue(queue: asyncio.Queue[Event | Exception], request: str, event: scope_pb2.ScopeEvent) -> None:
    if event.WhichOneof("body") != "generation" or event.generation.request != request:
        return
    try:
        queue.put_nowait(event_from_json(event.generation.event))
    except DataError as error:
        queue.put_nowait(UnavailableError(f"a rank says what can't be understood: {error}"))
    except asyncio.QueueFull:
        pass  # whoever waits has long stopped to read


def _send(
    session: Session, by: str, document: str, queue: asyncio.Queue[Event | Exception] | None, reason: str = ""
) -> None:
    def on_result(result: scope_pb2.ScopeResult) -> None:
        if result.ack.code and queue is not None:
            text = f"the model's ranks say {result.ack.code}: {result.ack.hint}"
            queue.put_nowait(UsageError(text) if result.ack.code == "invalid" else UnavailableError(text))

    generation = scope_pb2.ScopeGeneration(command=document)
    command = scope_pb2.ScopeCommand(id=secrets.token_hex(8), reason=reason, generation=generation)
    try:
        session.dispatch("api", by, "generation", command, on_result)
    except RefusedError as error:
        raise UnavailableError(str(error)) from error


def _cancel(session: Session, by: str, request: str) -> None:
    with suppress(UnavailableError):  # nobody is there who could go on with it
        _send(session, by, to_json(Control(action="cancel", request=request)), None)


def _check(finished: Finished) -> None:
    if finished.reason == "refused":
        raise UsageError(finished.message or "the model refuses this")
    if finished.reason == "failed":
        raise UnavailableError(finished.message or "the generation failed; see the run's log")
