"""What an experiment asks of a model and gets, and the requests that several of them make."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from megatronapp.core.generation import GenerationRequest, Prompt, Sampling
from megatronapp.core.generation_rows import Row
from megatronapp.core.scope.captures import Floats, Place, Wanted

GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class ModelShape:
    layers: int
    heads: int
    centered: bool
    """LayerNorm, which takes the mean away; else RMSNorm."""
    epsilon: float


@dataclass(frozen=True)
class Pass:
    """`name`: what later passes call its kept values by; the runner gives the request an id of its own."""

    request: GenerationRequest
    shown: tuple[Wanted, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Outcome:
    """`values` in the axes of their sites, without those that an operation dropped."""

    rows: Sequence[Row]
    values: Mapping[Place, Floats]


T = TypeVar("T")
Experiment = Generator[Pass, Outcome, T]


def scoring(prompts: Sequence[Prompt], **options: object) -> GenerationRequest:
    """Every token of the prompts computed, each one scored."""
    request = GenerationRequest(
        prompts=tuple(prompts),
        max_new_tokens=1,
        sampling=GREEDY,
        prompt_log_probabilities=True,
        stop_at_end_of_document=False,
    )
    return replace(request, **options)  # type: ignore[arg-type]


def addressed(asked: Pass, identifier: str, names: dict[str, str]) -> GenerationRequest:
    """The pass's request under an id of the runner's; `names` has those of earlier passes, and gets this one's."""
    interventions = tuple(
        replace(each, source=names.get(each.source, each.source), baseline=names.get(each.baseline, each.baseline))
        for each in asked.request.interventions
    )
    if asked.name:
        names[asked.name] = identifier
    return replace(asked.request, id=identifier, interventions=interventions)


def computed_positions(rows: Sequence[Row]) -> int:
    """Of a generation's passes together: the last token that is drawn is not computed."""
    return max(len(row.all_tokens) for row in rows) - 1


def answered(prompt: Prompt, answer: Prompt, rows: int = 1, **options: object) -> GenerationRequest:
    """The answer's tokens after the prompt, scored."""
    request = GenerationRequest(
        prompts=(prompt,) * rows, continuations=(answer,) * rows, max_new_tokens=0, stop_at_end_of_document=False
    )
    return replace(request, **options)  # type: ignore[arg-type]


def answer_of(row: Row) -> float:
    return sum(token.log_probability or 0.0 for token in row.tokens)
