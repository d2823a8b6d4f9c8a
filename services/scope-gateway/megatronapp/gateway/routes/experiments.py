"""Experiments on a model that generates: each takes several of its passes, and needs the operator role."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request

from megatronapp.core import experiments
from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.core.generation import Prompt, Sampling
from megatronapp.gateway.deps import AskingOperator, Caller, GatewayParts, Parts
from megatronapp.gateway.elsewhere import OwnersRoute
from megatronapp.gateway.experiment_models import (
    AttributionRequest,
    CausalTrace,
    CausalTraceRequest,
    ComparisonRequest,
    InputAttribution,
    InputAttributionRequest,
    LogitAttribution,
    PromptComparison,
    PromptSurprisal,
    PromptValue,
    SurprisalRequest,
    SweepRequest,
    SweptPoint,
)
from megatronapp.gateway.leaving import unless_gone
from megatronapp.gateway.scope.experimenting import Experimenter

router = APIRouter(prefix="/scope/runs/{run}", tags=["scope"], route_class=OwnersRoute)
Run = Annotated[str, Path(max_length=256, description="the run whose model it is")]


@router.post("/surprisal")
async def surprisal(
    body: SurprisalRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> list[PromptSurprisal]:
    """How little the model expects each token of prompts."""
    of = await _experimenter(gateway, run, asking)
    prompts = [_prompt(each) for each in body.prompts]
    found = await unless_gone(request, of.run(experiments.surprisal(prompts)))
    return [PromptSurprisal(**asdict(each)) for each in found]


@router.post("/causal-trace")
async def causal_trace(
    body: CausalTraceRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> CausalTrace:
    """Where values of one prompt, in place of another's, bring its answer back: a grid of layers and tokens."""
    of = await _experimenter(gateway, run, asking, body.reason)
    asked = experiments.causal_trace(
        _prompt(body.clean),
        _prompt(body.corrupted),
        _prompt(body.answer),
        of.shape,
        site=body.site,
        layers=body.layers,
        by_head=body.by_head,
    )
    found = await unless_gone(request, of.run(asked))
    return CausalTrace(
        tokens=found.tokens,
        layers=found.layers,
        clean=found.clean,
        corrupted=found.corrupted,
        patched=found.patched.tolist(),
        effect=found.effect.tolist(),
    )


@router.post("/comparison")
async def compare(
    body: ComparisonRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> PromptComparison:
    """A prompt without and with interventions: how far predictions and a site's values are apart."""
    of = await _experimenter(gateway, run, asking, _given(body.reason))
    asked = experiments.compare(
        _prompt(body.prompt),
        [each.of_core() for each in body.interventions],
        of.shape,
        free=body.free,
        site=body.site,
        max_new_tokens=body.max_new_tokens,
        sampling=Sampling(temperature=body.temperature),
        seed=body.seed,
        intervention_seed=body.intervention_seed,
        source=None if body.source is None else _prompt(body.source),
        baseline=None if body.baseline is None else _prompt(body.baseline),
    )
    found = await unless_gone(request, of.run(asked))
    return PromptComparison(
        clean_text=found.clean_text,
        other_text=found.other_text,
        first_different_position=found.first_different_position,
        edit_distance=found.edit_distance,
        kl=found.kl.tolist(),
        log_probability_difference=found.log_probability_difference.tolist(),
        layers=found.layers,
        cosine=found.cosine.tolist(),
        relative_l2=found.relative_l2.tolist(),
    )


@router.post("/sweep")
async def sweep(
    body: SweepRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> list[SweptPoint]:
    """How far predictions go as an intervention grows, over several seeds of its noise."""
    of = await _experimenter(gateway, run, asking, _given(body.reason))
    asked = experiments.sweep(_prompt(body.prompt), body.intervention.of_core(), body.coefficients, body.seeds)
    found = await unless_gone(request, of.run(asked))
    return [SweptPoint(**asdict(each)) for each in found]


@router.post("/attribution")
async def attribute(
    body: AttributionRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> LogitAttribution:
    """Direct logit attribution: what each head and MLP adds to the answer at the prompt's end."""
    of = await _experimenter(gateway, run, asking)
    answer = body.answer if isinstance(body.answer, int) else await of.token(body.answer)
    against = await of.token(body.against) if isinstance(body.against, str) else body.against
    asked = experiments.attribution(_prompt(body.prompt), answer, of.shape, against=against)
    found = await unless_gone(request, of.run(asked))
    return LogitAttribution(
        total=found.total,
        embed=found.embed,
        heads=found.heads.tolist(),
        biases=found.biases.tolist(),
        mlps=found.mlps.tolist(),
    )


@router.post("/input-attribution")
async def attribute_to_input(
    body: InputAttributionRequest, run: Run, gateway: GatewayParts, asking: AskingOperator, request: Request
) -> InputAttribution:
    """Gradient × input: how the answer's log-probability follows each token of the prompt."""
    of = await _experimenter(gateway, run, asking)
    against = None if body.against is None else _prompt(body.against)
    asked = experiments.gradient_times_input(_prompt(body.prompt), _prompt(body.answer), against=against)
    return InputAttribution(**asdict(await unless_gone(request, of.run(asked))))


async def _experimenter(gateway: Parts, run: str, asking: Caller, reason: str = "") -> Experimenter:
    """Raises NotFoundError for a run whose model nobody can ask."""
    session = await gateway.scope.session(run)
    if not session.generates:
        raise NotFoundError(f"the model of run {run!r} does not generate: start it with megatronapp serve, or --scope")
    return Experimenter(session, f"{asking.signature} (API)", reason)


def _given(reason: str) -> str:
    if not reason.strip():
        raise UsageError("interventions need a reason: say why; it is kept in the audit")
    return reason


def _prompt(value: PromptValue) -> Prompt:
    return value if isinstance(value, str) else tuple(value)
