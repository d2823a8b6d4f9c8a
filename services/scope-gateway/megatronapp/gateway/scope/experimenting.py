"""Experiments (core/experiments) on a run's model, with the gateway itself as the viewer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from megatronapp.core.auth import Role
from megatronapp.core.errors import UnavailableError, UsageError
from megatronapp.core.experiments import Experiment, ModelShape, Outcome, addressed, computed_positions
from megatronapp.core.generation import GenerationRequest, Prompt, Started, Token
from megatronapp.core.generation_rows import Row
from megatronapp.core.scope.captures import QUANTIZER, Captured, Unit, Wanted, batches, units
from megatronapp.core.scope.frame import unpack
from megatronapp.gateway.scope.generating import events_of, generate
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.sessions import Session
from megatronapp.gateway.scope.slots import MAX_CREDITS
from megatronapp.gateway.scope.tickets import Admission
from megatronapp.gateway.scope.viewers import Viewer
from megatronapp.v1 import scope_pb2

QUIET_SECONDS = 2.0
"""When no frame has come for so long after the last token, what is missing is lost."""
TRIES = 4
T = TypeVar("T")


class Experimenter:
    """`by` and `reason`: who asks, and why, for the audit."""

    def __init__(self, session: Session, by: str, reason: str) -> None:
        self._session, self._by, self._reason = session, by, reason

    @property
    def shape(self) -> ModelShape:
        model = self._session.structure.model
        return ModelShape(model.layers, model.heads, model.normalization != "RMSNorm", model.norm_epsilon)

    async def run(self, experiment: Experiment[T]) -> T:
        """To its result. Raises UsageError for what the model refuses, UnavailableError where it fails."""
        names: dict[str, str] = {}
        try:
            step = next(experiment)
            while True:
                request = addressed(step, _new_id(), names)
                step = experiment.send(await self._outcome(request, step.shown))
        except StopIteration as done:
            result: T = done.value
            return result

    async def token(self, text: str) -> int:
        """The id of a text that is one token. Raises UsageError for another one."""
        tokens = await self._tokens(text)
        if len(tokens) != 1:
            raise UsageError(f"{text[:40]!r} is {len(tokens)} tokens: give a text of one, or an id")
        return tokens[0].id

    async def _tokens(self, prompt: Prompt) -> list[Token]:
        """The prompt's; nothing is computed."""
        request = GenerationRequest(prompts=(prompt,), max_new_tokens=1, paused=True)
        async with aclosing(events_of(self._session, request, self._by)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Started):
                    return list(event.rows[0])
        raise UnavailableError("the model has not said what the prompt's tokens are: ask again")

    async def _outcome(self, request: GenerationRequest, shown: Sequence[Wanted]) -> Outcome:
        if not shown:
            return Outcome(await generate(self._session, request, self._by, self._reason), {})
        prompts = [tuple(token.id for token in await self._tokens(prompt)) for prompt in request.prompts]
        request = replace(request, prompts=tuple(prompts))
        given = max(map(len, prompts)) + max((len(each) for each in request.continuations), default=0)
        sites = {site.name: site for site in sorted(self._session.structure.sites(), key=lambda site: site.generates)}
        left = units(shown, sites, len(prompts), given + request.max_new_tokens)
        captured, rows = Captured(), [Row()]
        for _ in range(TRIES):
            for batch in batches(left):
                rows = await self._captured(request, batch, captured)
            left = captured.missing(left, computed_positions(rows))
            if not left:
                return Outcome(rows, captured.values())
        raise UnavailableError(f"values of {left[0].expression} do not come: ask for fewer at a time")

    async def _captured(self, request: GenerationRequest, batch: Sequence[Unit], captured: Captured) -> list[Row]:
        request = replace(request, id=request.id if request.keep else _new_id())
        viewer = Viewer(Admission(Role.VIEWER, self._by, None))
        try:
            for number, unit in enumerate(batch, 1):
                asked = scope_pb2.ScopeSubscribe(
                    id=number,
                    expression=unit.expression,
                    quantizer=QUANTIZER,
                    credits=MAX_CREDITS,
                    request=request.id,
                )
                captured.subscribed(unit, self._session.subscribe(viewer, asked).axes)
            rows = await generate(self._session, request, self._by, self._reason)
            while captured.missing(batch, computed_positions(rows)):
                async with asyncio.timeout(QUIET_SECONDS):
                    frame = unpack(await viewer.slots.take())
                captured.add(batch[frame.subscription - 1], frame)
        except RefusedError as error:
            raise UsageError(str(error)) from error
        except TimeoutError:
            pass  # what is missing is asked for again
        finally:
            for number in list(viewer.subscriptions):
                self._session.unsubscribe(viewer, number)
        return rows


def _new_id() -> str:
    return f"api-{secrets.token_hex(8)}"
