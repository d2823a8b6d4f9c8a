"""What experiments ask of a model, and what they make of its answers: without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.experiments import (
    MOST_ROWS,
    Experiment,
    ModelShape,
    Outcome,
    Pass,
    addressed,
    attribution,
    causal_trace,
    compare,
    gradient_times_input,
    mean_difference,
    scoring,
    surprisal,
    sweep,
)
from megatronapp.core.generation import Token
from megatronapp.core.generation_rows import Row
from megatronapp.core.scope.captures import Floats, Place
from megatronapp.core.scope.intervention import Intervention, patch, steer_between

T = TypeVar("T")
SHAPE = ModelShape(layers=2, heads=3, centered=False, epsilon=1e-6)
NOISE = Intervention(site="mlp.out", kind="noise1")


def run(experiment: Experiment[T], answer: Callable[[Pass], Outcome]) -> tuple[T, list[Pass]]:
    """To its end; the result, and the passes that it asked for."""
    passes = [next(experiment)]
    while True:
        try:
            passes.append(experiment.send(answer(passes[-1])))
        except StopIteration as done:
            return done.value, passes


def row(prompt: Sequence[int], added: Sequence[tuple[int, float]] = (), text: str = "") -> Row:
    """`added`: ids with their log-probabilities."""
    given = [
        Token(
            row=0, position=at, id=each, text=f"<{each}>", origin="prompt", log_probability=-float(at) if at else None
        )
        for at, each in enumerate(prompt)
    ]
    drawn = [
        Token(row=0, position=len(given) + at, id=each, text=f"<{each}>", origin="sampled", log_probability=value)
        for at, (each, value) in enumerate(added)
    ]
    return Row(prompt=given, tokens=drawn, text=text)


def test_surprisal_is_what_was_not_expected_and_unknown_of_the_first() -> None:
    [found], [asked] = run(surprisal(["abc"]), lambda _: Outcome([row([7, 8, 9])], {}))

    assert (found.ids, found.texts, found.nats) == ([7, 8, 9], ["<7>", "<8>", "<9>"], [None, 1.0, 2.0])
    assert asked.request.prompt_log_probabilities


def test_gradients_of_two_answers_are_those_of_the_lead() -> None:
    def answer(asked: Pass) -> Outcome:
        [follows] = asked.request.continuations
        found = row([7, 8], [(1, -1.0), (2, -2.0)] if follows == " x" else [(3, -5.0)])
        found.input_gradients = (1.0, 2.0, 9.0) if follows == " x" else (0.5, 3.0)
        return Outcome([found], {})

    found, passes = run(gradient_times_input("ab", " x", against=" y"), answer)

    assert (found.ids, found.values, found.target) == ([7, 8], [0.5, -1.0], 2.0)
    assert all(asked.request.input_gradients and asked.request.max_new_tokens == 0 for asked in passes)
    assert passes[1].request.prompts == ((7, 8),)


def test_values_of_other_prompts_are_kept_before_they_are_taken() -> None:
    changes = [
        Intervention(site="resid_post", kind="steer", layers="1"),
        NOISE,
        Intervention(site="mlp.out", kind="mean"),
    ]
    asked = compare("ab", changes, SHAPE, source="cd", baseline="ef")

    source, baseline = next(asked), asked.send(Outcome([row([1])], {}))
    asked.send(Outcome([row([1])], {}))  # A
    values = {("logits", None): np.zeros((1, 2, 5))} | {("resid_post", layer): np.ones((1, 2, 3)) for layer in (0, 1)}
    b = asked.send(Outcome([row([1, 2], [(3, -1.0)])], values))  # type: ignore[arg-type]

    assert [(each.name, each.request.prompts) for each in (source, baseline)] == [
        ("source", ("cd",)),
        ("baseline", ("ef",)),
    ]
    assert source.request.keep == baseline.request.keep == ("layers[1].resid_post", "layers[*].mlp.out")
    named = [(each.source, each.baseline) for each in b.request.interventions]
    assert named == [("source", "baseline"), ("", ""), ("source", "")]


def test_a_patch_without_a_source_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="patch takes its values from another prompt: give source"):
        next(compare("ab", [Intervention(site="resid_post", kind="patch")], SHAPE))


def test_names_of_passes_become_the_runners_ids() -> None:
    names: dict[str, str] = {}
    first = addressed(Pass(scoring(["a"]), name="clean"), "id-1", names)
    changes = (patch("resid_post", "clean"), steer_between("resid_post", "clean", "elsewhere"))

    second = addressed(Pass(scoring(["b"], interventions=changes)), "id-2", names)

    assert (first.id, second.id, names) == ("id-1", "id-2", {"clean": "id-1"})
    assert [each.source for each in second.interventions] == ["id-1", "id-1"]
    assert second.interventions[1].baseline == "elsewhere"


class Traced:
    """Answers a trace: the log-probability of a patched row is a number of its layer and column."""

    def __init__(self, clean: int = 40, corrupted: int = 40) -> None:
        self.clean, self.corrupted = list(range(clean)), list(range(100, 100 + corrupted))

    def __call__(self, asked: Pass) -> Outcome:
        if asked.name:
            return Outcome([row(self.clean, [(1, -0.5), (2, -0.5)])], {})
        if not asked.request.interventions:
            return Outcome([row(self.corrupted, [(1, -9.0)])], {})
        return Outcome([row(self.corrupted, [(1, -self.cell(each) / 100)]) for each in asked.request.interventions], {})

    @staticmethod
    def cell(each: Intervention) -> float:
        return 1000.0 * int(each.layers) + int(each.tokens or each.heads)


def test_a_trace_patches_each_cell_once_and_puts_it_where_it_belongs() -> None:
    found, passes = run(causal_trace("clean", "other", " x", SHAPE), Traced())

    clean, _, *patched = passes
    assert clean.request.keep == ("layers[0,1].resid_post",)
    assert [len(each.request.prompts) for each in patched] == [MOST_ROWS, 80 - MOST_ROWS]
    assert all(
        (each.source, each.rows) == (clean.name, str(number))
        for asked in patched
        for number, each in enumerate(asked.request.interventions)
    )
    assert np.allclose(found.patched, -(1000.0 * np.arange(2)[:, None] + np.arange(40)) / 100)
    assert (found.clean, found.corrupted) == (-1.0, -9.0)
    assert found.effect[0, 0] == pytest.approx(9 / 8)
    assert found.tokens[0] == "<100>"


def test_a_trace_by_heads_has_a_column_a_head_of_the_layers_asked_for() -> None:
    found, [clean, _, patched] = run(
        causal_trace("clean", "other", " x", SHAPE, site="attn.context", layers=[1], by_head=True), Traced()
    )

    assert clean.request.keep == ("layers[1].attn.context",)
    assert [(each.heads, each.tokens) for each in patched.request.interventions] == [("0", ""), ("1", ""), ("2", "")]
    assert (found.layers, found.patched.shape) == ([1], (1, 3))


def test_prompts_of_unequal_length_are_not_traced() -> None:
    with pytest.raises(UsageError, match="has 3 tokens, the corrupted one 4: give as many"):
        run(causal_trace("clean", "other", " x", SHAPE), Traced(3, 4))


def test_prompts_that_lead_to_the_answer_alike_have_no_effect_to_share() -> None:
    class Same(Traced):
        def __call__(self, asked: Pass) -> Outcome:
            return Outcome([row([1, 2], [(3, -1.0)]) for _ in asked.request.prompts], {})

    found, _ = run(causal_trace("clean", "other", " x", SHAPE), Same())

    assert np.isnan(found.effect).all()


def logits(ids: Sequence[int], vocabulary: int = 16) -> Floats:
    """[1, token, vocab] of which each row says the next id."""
    values = np.zeros((1, len(ids), vocabulary), np.float32)
    values[0, np.arange(len(ids)), list(ids)] = 5.0
    return values


def shown(ids: Sequence[int], scale: float = 1.0) -> dict[Place, Floats]:
    stream = np.ones((1, len(ids), 4), np.float32)
    return {("logits", None): logits(ids), **{("resid_post", layer): scale * stream for layer in range(2)}}


def test_a_comparison_gives_b_the_tokens_of_a() -> None:
    a = Outcome([row([1, 2], [(3, -0.1), (4, -0.2), (5, -0.3)], "abc")], shown([2, 3, 4, 5]))
    b = Outcome([row([1, 2], [(3, -0.1), (4, -0.2), (5, -0.3)], "abc")], shown([2, 3, 4, 5], 2.0))

    found, passes = run(
        compare("p", [NOISE], SHAPE, max_new_tokens=3, intervention_seed=4),
        lambda asked: b if asked.request.interventions else a,
    )

    disturbed = passes[1].request
    assert (disturbed.prompts, disturbed.continuations) == (((1, 2),), ((3, 4),))
    assert (disturbed.max_new_tokens, disturbed.intervention_seed) == (1, 4)
    assert found.first_different_position is None
    assert np.allclose(found.kl, 0)
    assert np.allclose(found.cosine, 1)
    assert np.allclose(found.relative_l2, 1)
    assert found.kl.shape == (4,)
    assert found.relative_l2.shape == (2, 4)


def test_a_free_comparison_ends_where_the_two_part() -> None:
    a = Outcome([row([1, 2], [(3, -0.1), (4, -0.2), (5, -0.3)], "abc")], shown([2, 3, 4, 5]))
    b = Outcome([row([1, 2], [(3, -0.1), (9, -0.2), (8, -0.3)], "axy")], shown([2, 3, 9, 8]))

    found, passes = run(
        compare("p", [NOISE], SHAPE, free=True, max_new_tokens=3),
        lambda asked: b if asked.request.interventions else a,
    )

    assert passes[1].request.continuations == ()
    assert (found.first_different_position, found.edit_distance) == (3, 2)
    assert len(found.kl) == 3  # what is predicted after 1, 2 and 3; then the tokens are not the same
    assert np.allclose(found.kl[:2], 0)
    assert found.kl[2] > 1
    assert found.log_probability_difference[2] == pytest.approx(-5.0)
    assert (found.clean_text, found.other_text) == ("abc", "axy")


def test_a_sweep_has_a_mean_and_an_interval_for_each_coefficient() -> None:
    def answer(asked: Pass) -> Outcome:
        values = logits([2, 3])
        for change in asked.request.interventions:
            values[0, :, 9] += change.coefficient * (1 + asked.request.intervention_seed)
        return Outcome([row([1, 2], [(3, 0.0)])], {("logits", None): values})

    found, passes = run(sweep("p", NOISE, [0.0, 4.0], 3), answer)

    assert len(passes) == 1 + 2 * 3
    assert [each.request.intervention_seed for each in passes[1:4]] == [0, 1, 2]
    none, some = found
    assert (none.mean, none.half_width) == (0.0, 0.0)
    assert some.mean == pytest.approx(np.mean(some.kl))
    assert some.half_width == pytest.approx(1.96 * np.std(some.kl, ddof=1) / 3**0.5)
    assert some.kl == sorted(some.kl)


@pytest.mark.parametrize(("coefficients", "seeds"), [([], 1), ([1.0], 0)])
def test_a_sweep_of_nothing_is_refused(coefficients: list[float], seeds: int) -> None:
    with pytest.raises(UsageError, match="one coefficient and one seed"):
        run(sweep("p", NOISE, coefficients, seeds), lambda _: Outcome([], {}))


def test_parts_of_a_logit_add_up_to_it_and_a_rival_is_taken_away() -> None:
    random = np.random.default_rng(0)
    unembed = random.standard_normal((16, 4)).astype(np.float32)
    parts: dict[Place, Floats] = {("embed", None): random.standard_normal((1, 1, 4)).astype(np.float32)}
    for layer in range(2):
        heads = random.standard_normal((1, 1, 3, 4)).astype(np.float32)
        parts |= {("attn.result", layer): heads, ("attn.out", layer): heads.sum(2) + 0.5}
        parts["mlp.out", layer] = random.standard_normal((1, 1, 4)).astype(np.float32)
    parts["weight.final_norm", None] = np.ones(4, np.float32)

    def answer(asked: Pass) -> Outcome:
        [token] = [int(each.operations[6:-1]) for each in asked.shown if each.site == "weight.unembed"]
        return Outcome([row([1, 2])], {**parts, ("weight.unembed", None): unembed[token]})

    found, passes = run(attribution("p", 5, SHAPE, against=6), answer)

    stream = parts["embed", None][0, 0] + sum(parts[site, n][0, 0] for site in ("attn.out", "mlp.out") for n in (0, 1))
    expected = stream / np.sqrt((stream**2).mean() + 1e-6) @ (unembed[5] - unembed[6])
    assert len(passes) == 2
    assert found.total == pytest.approx(expected, rel=1e-5)
    assert found.heads.shape == (2, 3)


def test_a_steering_vector_is_the_difference_of_means_at_the_last_tokens() -> None:
    of = {"a": 1.0, "b": 3.0, "c": -1.0}

    def answer(asked: Pass) -> Outcome:
        [prompt] = asked.request.prompts
        assert isinstance(prompt, str)
        return Outcome([row([1])], {("resid_post", 1): np.full((1, 1, 4), of[prompt], np.float32)})

    found, passes = run(mean_difference(["a", "b"], ["c"], "resid_post", 1), answer)

    assert np.array_equal(found, np.full(4, 3.0))
    assert len(passes) == 3
    with pytest.raises(UsageError, match="both kinds"):
        run(mean_difference(["a"], [], "resid_post", 1), answer)
