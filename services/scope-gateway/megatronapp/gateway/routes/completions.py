"""Text generation as other servers offer it: Megatron-LM's `PUT /api`, and OpenAI's `POST /v1/completions`.

Both need the operator role: a generation takes the model's time.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import StreamingResponse

from megatronapp.core.auth import Role
from megatronapp.core.errors import ForbiddenError, NotFoundError, UsageError
from megatronapp.core.generation import GenerationRequest, Prompt, Sampling, Token
from megatronapp.core.generation_rows import Row
from megatronapp.gateway.completion_models import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    CompletionUsage,
    MegatronGeneration,
    MegatronRequest,
)
from megatronapp.gateway.deps import Caller, GatewayParts, caller
from megatronapp.gateway.elsewhere import OwnersRoute
from megatronapp.gateway.leaving import unless_gone
from megatronapp.gateway.routes.completion_stream import EVENT_STREAM, Streamed, logprobs_of, streamed
from megatronapp.gateway.scope.generating import events_of, generate
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.scope.sessions import Session

router = APIRouter(tags=["generation"], route_class=OwnersRoute)
Asking = Annotated[Caller, Depends(caller)]


@router.put("/api", response_model_exclude_none=True)
async def megatron_generate(
    body: MegatronRequest, gateway: GatewayParts, asking: Asking, request: Request
) -> MegatronGeneration:
    """As Megatron-LM's text-generation server has it: prompts in, prompts with their continuations out."""
    by = _operator(asking)
    session = await _serving(gateway.scope, "")
    rows = await unless_gone(request, generate(session, _of_megatron(body), by))
    if body.beam_width:
        beams = rows[0].beams[: body.beam_width]
        texts = [str(body.prompts[0]) + beam.text for beam in beams]
        return MegatronGeneration(text=texts, segments=[], scores=[beam.score for beam in beams])
    return MegatronGeneration(
        text=[_text(row.prompt) + row.text for row in rows],
        segments=[[token.text for token in (*row.prompt, *row.tokens)] for row in rows],
        logprobs=[_log_probabilities(row) for row in rows] if body.logprobs else None,
    )


@router.post(
    "/v1/completions",
    response_model=Completion,
    response_model_exclude_none=True,
    responses={200: {"content": {EVENT_STREAM: {}}, "description": "with `stream` as server-sent events"}},
)
async def complete(
    body: CompletionRequest, gateway: GatewayParts, asking: Asking, request: Request
) -> Completion | StreamingResponse:
    """As OpenAI's completions: `model` is a run, its job, or left out where one model is served."""
    by = _operator(asking)
    session = await _serving(gateway.scope, body.model)
    if body.stream:
        events = events_of(session, _of_completion(body), by)
        first = await unless_gone(request, anext(events))  # what is refused has a status of its own
        about = Streamed(id=_new_id(), created=int(time.time()), model=body.model or session.identity.job)
        return StreamingResponse(streamed(about, body, first, events), media_type=EVENT_STREAM)
    rows = await unless_gone(request, generate(session, _of_completion(body), by))
    choices = [_choice(number, row, body) for number, row in enumerate(rows)]
    prompt_tokens, tokens = sum(len(row.prompt) for row in rows), sum(len(row.tokens) for row in rows)
    return Completion(
        id=_new_id(),
        created=int(time.time()),
        model=body.model or session.identity.job,
        choices=choices,
        usage=CompletionUsage(
            prompt_tokens=prompt_tokens, completion_tokens=tokens, total_tokens=prompt_tokens + tokens
        ),
    )


def _new_id() -> str:
    return f"cmpl-{secrets.token_hex(12)}"


def _operator(asking: Caller) -> str:
    if asking.role is not Role.OPERATOR:
        raise ForbiddenError("generating needs the operator role; send an operator's token")
    return f"{asking.role.value} (API)"


async def _serving(scope: Scope, model: str) -> Session:
    """Raises NotFoundError, ElsewhereError for another replica's, and UsageError where several could be meant."""
    able = [one for one in await scope.served() if one.generates and model in ("", one.run, one.job)]
    if not able:
        raise NotFoundError(f"no model {model[:100]} is served; start one with megatronapp serve".replace("  ", " "))
    if len(able) > 1:
        names = ", ".join(one.job for one in able[:5])
        raise UsageError(f"{len(able)} models are served: say which by /v1/completions' model, such as {names}")
    return await scope.session(able[0].run)


def _of_megatron(body: MegatronRequest) -> GenerationRequest:
    """Raises UsageError."""
    return GenerationRequest(
        prompts=tuple(body.prompts),
        max_new_tokens=body.tokens_to_generate,
        sampling=Sampling(
            temperature=body.temperature,
            top_k=body.top_k,
            # 0 is its word for no filter.
            top_p=body.top_p or 1.0,
            top_p_decay=body.top_p_decay or 1.0,
            top_p_bound=body.top_p_bound,
        ),
        seed=body.random_seed if body.random_seed is not None else secrets.randbelow(1 << 31),
        beam_width=body.beam_width,
        length_penalty=body.length_penalty,
        stop_tokens=() if body.stop_token is None else (body.stop_token,),
        stop_words=(*(("\n\n",) if body.stop_on_double_eol else ()), *(("\n",) if body.stop_on_eol else ())),
        add_bos=body.add_bos,
        no_newline_after_colon=body.prevent_newline_after_colon,
        prompt_log_probabilities=body.logprobs and not body.beam_width,
    )


def _of_completion(body: CompletionRequest) -> GenerationRequest:
    """Raises UsageError."""
    return GenerationRequest(
        prompts=_prompts(body.prompt),
        max_new_tokens=body.max_tokens,
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        seed=body.seed if body.seed is not None else secrets.randbelow(1 << 31),
        stop_words=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        prompt_log_probabilities=body.echo and body.logprobs is not None,
        top_candidates=body.logprobs or 0,
    )


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if all(isinstance(each, int) for each in given):
        return (tuple(int(each) for each in given),)  # type: ignore[arg-type]
    return tuple(each if isinstance(each, str) else tuple(each) for each in given)  # type: ignore[arg-type]


def _text(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def _log_probabilities(row: Row) -> list[float | None]:
    """Of each token but the first, of which the model says nothing."""
    return [token.log_probability for token in (*row.prompt, *row.tokens)][1:]


def _choice(number: int, row: Row, body: CompletionRequest) -> CompletionChoice:
    shown = [*row.prompt, *row.tokens] if body.echo else row.tokens
    text = (_text(row.prompt) if body.echo else "") + row.text
    reason = "length" if row.reason == "length" else "stop"
    return CompletionChoice(
        text=text, index=number, finish_reason=reason, logprobs=None if body.logprobs is None else logprobs_of(shown)
    )
