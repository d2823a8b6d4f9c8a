"""A prompt with and without interventions: once, and as one of them grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.experiments.passes import GREEDY, Experiment, ModelShape, Outcome, Pass, scoring
from megatronapp.core.generation import Prompt, Sampling, Token
from megatronapp.core.scope.captures import Wanted
from megatronapp.core.scope.intervention import FROM_VALUES, STEER, Intervention
from megatronapp.core.scope.measures import (
    Doubles,
    cosine,
    edit_distance,
    first_difference,
    kl_divergence,
    log_softmax,
    relative_l2,
)

SOURCE, BASELINE = "source", "baseline"


@dataclass(frozen=True)
class Comparison:
    """One prompt without (A) and with (B) interventions. Positions are of tokens; where the two are not the same tokens
    any more, nothing is compared."""

    clean_text: str
    other_text: str
    first_different_position: int | None
    edit_distance: int
    kl: Doubles
    """[token]: of what is predicted after each token, nats."""
    log_probability_difference: Doubles
    """[token]: of A's next token, B − A."""
    cosine: Doubles
    """[layer, token], of the site."""
    relative_l2: Doubles
    layers: list[int] = field(default_factory=list)


def compare(
    prompt: Prompt,
    interventions: Sequence[Intervention],
    shape: ModelShape,
    *,
    free: bool = False,
    site: str = "resid_post",
    max_new_tokens: int = 16,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    intervention_seed: int = 0,
    source: Prompt | None = None,
    baseline: Prompt | None = None,
) -> Experiment[Comparison]:
    """A generates; B is given A's tokens, or with `free` goes its own way from the same prompt, with the same seed.
    Interventions that patch, mean-ablate or steer without naming whose values they take, take those of the prompts
    `source` and `baseline`. Raises UsageError."""
    interventions = yield from _with_sources(interventions, source, baseline)
    layers = tuple(range(shape.layers))
    shown = (Wanted("logits"), Wanted(site, layers))
    request = scoring((prompt,), max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, top_candidates=1)
    a = yield Pass(request, shown)
    ids = tuple(token.id for token in a.rows[0].prompt)
    added = tuple(token.id for token in a.rows[0].tokens)
    disturbed = replace(
        request, prompts=(ids,), interventions=tuple(interventions), intervention_seed=intervention_seed
    )
    if not free and len(added) > 1:
        disturbed = replace(disturbed, continuations=(added[:-1],), max_new_tokens=1)
    b = yield Pass(disturbed, shown)
    return _compared(a, b, ids, site, layers, free=free)


def _with_sources(
    interventions: Sequence[Intervention], source: Prompt | None, baseline: Prompt | None
) -> Experiment[Sequence[Intervention]]:
    """With the names of the passes that keep the values which are taken."""
    taking = [each for each in interventions if each.kind in FROM_VALUES and not (each.source or each.vector)]
    if not taking:
        return interventions
    keep = tuple(dict.fromkeys(_selector(each) for each in taking))
    steers = any(each.kind == STEER for each in taking)
    for name, prompt, needed in ((SOURCE, source, True), (BASELINE, baseline, steers)):
        if needed and prompt is None:
            raise UsageError(f"{taking[0].kind} takes its values from another prompt: give {name}")
        if needed and prompt is not None:
            yield Pass(scoring((prompt,), keep=keep), name=name)
    named = {id(each): replace(each, source=SOURCE, baseline=BASELINE * (each.kind == STEER)) for each in taking}
    return [named.get(id(each), each) for each in interventions]


def _selector(of: Intervention) -> str:
    return f"layers[{of.layers or '*'}].{of.site}"


def _compared(
    a: Outcome, b: Outcome, prompt: Sequence[int], site: str, layers: Sequence[int], *, free: bool
) -> Comparison:
    tokens = [token.id for token in a.rows[0].tokens]
    one, other = ([_predicted(token, free=free) for token in outcome.rows[0].tokens] for outcome in (a, b))
    different = first_difference(one, other)
    logits = [outcome.values["logits", None][0] for outcome in (a, b)]
    count = min(len(each) for each in logits)
    if free and different is not None:
        count = min(count, len(prompt) + different)
    following = [*prompt, *tokens][1 : count + 1]
    known = [values[np.arange(len(following)), following] for values in map(log_softmax, logits)]
    values = [[outcome.values[site, layer][0][:count] for layer in layers] for outcome in (a, b)]
    return Comparison(
        clean_text=a.rows[0].text,
        other_text=b.rows[0].text,
        first_different_position=None if different is None else len(prompt) + different,
        edit_distance=edit_distance(one, other),
        kl=kl_divergence(logits[0][:count], logits[1][:count]),
        log_probability_difference=known[1] - known[0],
        cosine=np.stack([cosine(x, y) for x, y in zip(*values, strict=True)]),
        relative_l2=np.stack([relative_l2(x, y) for x, y in zip(*values, strict=True)]),
        layers=list(layers),
    )


def _predicted(token: Token, *, free: bool) -> int:
    """What was drawn; of a model that was given its tokens, what it would have said."""
    return token.id if free or not token.candidates else token.candidates[0].id


@dataclass(frozen=True)
class SweepPoint:
    """Mean KL per token of one coefficient over the seeds, with a normal 95 % interval of the mean."""

    coefficient: float
    kl: list[float]
    """By seed."""
    mean: float
    half_width: float


def sweep(
    prompt: Prompt, intervention: Intervention, coefficients: Sequence[float], seeds: int
) -> Experiment[list[SweepPoint]]:
    """How far the model's predictions go from the clean ones as an intervention grows. Noise is drawn from seeds 0 to
    n − 1; the prompt's tokens are the same throughout."""
    if seeds < 1 or not coefficients:
        raise UsageError("a sweep has one coefficient and one seed at least")
    shown = (Wanted("logits"),)
    clean = yield Pass(scoring((prompt,)), shown)
    ids = tuple(token.id for token in clean.rows[0].prompt)
    points = []
    for coefficient in coefficients:
        found: list[float] = []
        for seed in range(seeds):
            changed = (replace(intervention, coefficient=coefficient),)
            outcome = yield Pass(scoring((ids,), interventions=changed, intervention_seed=seed), shown)
            found.append(
                float(kl_divergence(clean.values["logits", None][0], outcome.values["logits", None][0]).mean())
            )
        spread = float(np.std(found, ddof=1)) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        points.append(SweepPoint(coefficient, found, float(np.mean(found)), 1.96 * spread))
    return points
