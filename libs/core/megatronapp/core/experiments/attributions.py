"""What a prediction comes from: surprisal, gradient × input, and direct logit attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatronapp.core.experiments.passes import Experiment, ModelShape, Pass, answer_of, answered, scoring
from megatronapp.core.generation import Prompt
from megatronapp.core.scope.captures import Floats, Wanted
from megatronapp.core.scope.measures import Attribution, direct_logit_attribution


@dataclass(frozen=True)
class Surprisal:
    """Of one prompt. `nats`: −ln p of each token given those before it; of the first nobody knows."""

    ids: list[int]
    texts: list[str]
    nats: list[float | None]


def surprisal(prompts: Sequence[Prompt]) -> Experiment[list[Surprisal]]:
    outcome = yield Pass(scoring(prompts))
    return [
        Surprisal(
            ids=[token.id for token in row.prompt],
            texts=[token.text for token in row.prompt],
            nats=[None if token.log_probability is None else -token.log_probability for token in row.prompt],
        )
        for row in outcome.rows
    ]


@dataclass(frozen=True)
class InputAttribution:
    """Of one prompt. `values`: d target / d x · x of each token's embedding x, nats; the target is the answer's
    log-probability after the prompt, or its lead over another answer's."""

    ids: list[int]
    texts: list[str]
    values: list[float]
    target: float


def gradient_times_input(
    prompt: Prompt, answer: Prompt, *, against: Prompt | None = None
) -> Experiment[InputAttribution]:
    """Of an answer of several tokens the log-probabilities are summed."""
    outcome = yield Pass(answered(prompt, answer, input_gradients=True))
    row = outcome.rows[0]
    values, target = np.array(row.input_gradients[: len(row.prompt)]), answer_of(row)
    ids = [token.id for token in row.prompt]
    if against is not None:
        other = (yield Pass(answered(tuple(ids), against, input_gradients=True))).rows[0]
        values, target = values - np.array(other.input_gradients[: len(ids)]), target - answer_of(other)
    return InputAttribution(ids, [token.text for token in row.prompt], values.tolist(), target)


def attribution(
    prompt: Prompt, answer: int, shape: ModelShape, *, against: int | None = None
) -> Experiment[Attribution]:
    """What each head and MLP adds at the last token to the logit of `answer`, or to its lead over `against`."""
    layers = tuple(range(shape.layers))
    last = "last(1)"
    rows = [f"vocab({token})" for token in (answer, *(() if against is None else (against,)))]
    parts = (
        Wanted("embed", operations=last),
        Wanted("attn.result", layers, last),
        Wanted("attn.out", layers, last),
        Wanted("mlp.out", layers, last),
        Wanted("weight.final_norm"),
        Wanted("weight.unembed", operations=rows[0]),
    )
    outcome = yield Pass(scoring((prompt,)), parts)
    direction = outcome.values["weight.unembed", None]
    if against is not None:
        other = yield Pass(scoring((prompt,)), (Wanted("weight.unembed", operations=rows[1]),))
        direction = direction - other.values["weight.unembed", None]
    values = outcome.values

    def stacked(site: str) -> Floats:
        return np.stack([values[site, layer][0, 0] for layer in layers])

    return direct_logit_attribution(
        values["embed", None][0, 0],
        stacked("attn.result"),
        stacked("attn.out"),
        stacked("mlp.out"),
        direction,
        norm_weight=values["weight.final_norm", None],
        epsilon=shape.epsilon,
        centered=shape.centered,
    )
