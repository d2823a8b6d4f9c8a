"""Experiments on a model that generates: each says which passes it needs, and makes its result of what they show.

An experiment is a generator: it yields a `Pass` and is sent the `Outcome`. So it does no I/O, knows no transport, and
runs over the gateway as over a client (`megatronapp.scope`):

    outcome = Outcome of nothing
    while True: outcome = run(experiment.send(outcome))
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import GenerationRequest, Prompt, Sampling, Token
from megatronapp.core.generation_rows import Row
from megatronapp.core.scope.captures import Floats, Place, Wanted
from megatronapp.core.scope.intervention import FROM_VALUES, STEER, Intervention, patch
from megatronapp.core.scope.measures import (
    Attribution,
    Doubles,
    cosine,
    direct_logit_attribution,
    edit_distance,
    first_difference,
    kl_divergence,
    log_softmax,
    relative_l2,
)

GREEDY = Sampling(temperature=0)
CLEAN, CORRUPTED = "clean", "corrupted"
SOURCE, BASELINE = "source", "baseline"
MOST_ROWS = 64
"""Of one pass of a trace."""


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


# ---- surprisal


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


# ---- gradient × input


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
    outcome = yield Pass(_answered(prompt, answer, input_gradients=True))
    row = outcome.rows[0]
    values, target = np.array(row.input_gradients[: len(row.prompt)]), _answer(row)
    ids = [token.id for token in row.prompt]
    if against is not None:
        other = (yield Pass(_answered(tuple(ids), against, input_gradients=True))).rows[0]
        values, target = values - np.array(other.input_gradients[: len(ids)]), target - _answer(other)
    return InputAttribution(ids, [token.text for token in row.prompt], values.tolist(), target)


# ---- causal tracing


@dataclass(frozen=True)
class Trace:
    """The answer's log-probability in the clean and the corrupted prompt, and in the corrupted one with one cell of the
    clean one: `patched` [layer, token] or, of a site with heads, [layer, head]."""

    tokens: list[str]
    """Of the corrupted prompt."""
    layers: list[int]
    clean: float
    corrupted: float
    patched: Doubles

    @property
    def effect(self) -> Doubles:
        """0: as corrupted, 1: as clean; NaN where the two prompts lead to the answer alike."""
        difference = self.clean - self.corrupted or np.nan
        return np.asarray((self.patched - self.corrupted) / difference)


def causal_trace(
    clean: Prompt,
    corrupted: Prompt,
    answer: Prompt,
    shape: ModelShape,
    *,
    site: str = "resid_post",
    layers: Sequence[int] = (),
    by_head: bool = False,
) -> Experiment[Trace]:
    """Values of the clean prompt in place of the corrupted one's, one layer and token (or head) at a time (Meng et al.,
    "Locating and Editing Factual Associations in GPT", 2022). Prompts are of the same number of tokens; of an answer of
    several tokens the log-probabilities are summed. Raises UsageError."""
    chosen = list(layers) or list(range(shape.layers))
    keep = (f"layers[{','.join(map(str, chosen))}].{site}",)
    kept = yield Pass(_answered(clean, answer, keep=keep), name=CLEAN)
    given = yield Pass(_answered(corrupted, answer))
    ids, tokens = [token.id for token in given.rows[0].prompt], [token.text for token in given.rows[0].prompt]
    if len(kept.rows[0].prompt) != len(ids):
        raise UsageError(
            f"the clean prompt has {len(kept.rows[0].prompt)} tokens, the corrupted one {len(ids)}: give as many"
        )
    columns = shape.heads if by_head else len(ids)
    cells = [(layer, column) for layer in chosen for column in range(columns)]
    found: list[float] = []
    for at in range(0, len(cells), MOST_ROWS):
        some = cells[at : at + MOST_ROWS]
        patches = [
            patch(site, CLEAN, layers=str(layer), rows=str(row), **{"heads" if by_head else "tokens": str(column)})
            for row, (layer, column) in enumerate(some)
        ]
        outcome = yield Pass(_answered(tuple(ids), answer, rows=len(some), interventions=tuple(patches)))
        found += [_answer(row) for row in outcome.rows]
    patched = np.array(found).reshape(len(chosen), columns)
    return Trace(tokens, chosen, _answer(kept.rows[0]), _answer(given.rows[0]), patched)


def _answered(prompt: Prompt, answer: Prompt, rows: int = 1, **options: object) -> GenerationRequest:
    """The answer's tokens after the prompt, scored."""
    request = GenerationRequest(
        prompts=(prompt,) * rows, continuations=(answer,) * rows, max_new_tokens=0, stop_at_end_of_document=False
    )
    return replace(request, **options)  # type: ignore[arg-type]


def _answer(row: Row) -> float:
    return sum(token.log_probability or 0.0 for token in row.tokens)


# ---- with and without


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


# ---- attribution


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


# ---- steering


def mean_difference(towards: Sequence[Prompt], away: Sequence[Prompt], site: str, layer: int) -> Experiment[Floats]:
    """A steering vector: the mean of the site at the last token of each prompt, of the one set minus the other's."""
    means = []
    for prompts in (towards, away):
        if not prompts:
            raise UsageError("a steering vector needs prompts of both kinds")
        found = []
        for prompt in prompts:  # one by one: rows of unequal length have their last tokens in different passes
            outcome = yield Pass(scoring((prompt,)), (Wanted(site, (layer,), "last(1)"),))
            found.append(outcome.values[site, layer][0, -1])
        means.append(np.mean(found, axis=0))
    return np.asarray(means[0] - means[1])
