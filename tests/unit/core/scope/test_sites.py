"""Ranks say what they have; from that follows who has which part of the model's values."""

from dataclasses import replace

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.core.scope.sites import (
    Axis,
    Coordinates,
    Model,
    Rule,
    Site,
    Split,
    default_quantizer,
    matching,
    resolved,
    standard_sites,
    whole,
)

MODEL = Model(layers=4, hidden=8, heads=4, head_channels=2, mlp_channels=16, vocabulary=10, query_groups=2, gated=True)
AXIS = Axis("chan", 8, (Split(Rule.TENSOR, 1, 2),))


def held(axis: Axis) -> list[int]:
    return pieces(axis)[piece_index(axis)].tolist()


def of(name: str, **at: object) -> Site:
    found = standard_sites(MODEL, Coordinates(layers=(0, 1), **at))
    return next(site for site in found if site.name == name)


@pytest.mark.parametrize(
    ("rule", "part", "expected"),
    [
        (Rule.TENSOR, 1, [4, 5, 6, 7]),
        (Rule.TENSOR_PAIRS, 1, [2, 3, 6, 7]),
        (Rule.CONTEXT, 1, [2, 3, 4, 5]),
        (Rule.CONTEXT, 0, [0, 1, 6, 7]),
        (Rule.SEQUENCE, 0, [0, 1, 2, 3]),
    ],
)
def test_each_rule_has_its_cells(rule: Rule, part: int, expected: list[int]) -> None:
    assert held(Axis("chan", 8, (Split(rule, part, 2),))) == expected


def test_sequence_parallel_cuts_the_tokens_that_context_parallel_leaves() -> None:
    assert held(Axis("token", 16, (Split(Rule.CONTEXT, 0, 2), Split(Rule.SEQUENCE, 1, 2)))) == [12, 13, 14, 15]


def test_a_gated_fc1_has_its_part_of_both_halves() -> None:
    assert held(of("mlp.fc1", tensor=(1, 2)).axes[2]) == [*range(8, 16), *range(24, 32)]


def test_residuals_are_split_by_tokens_only_under_sequence_parallelism() -> None:
    assert of("resid_post", tensor=(0, 2)).axes[1].splits == ()
    assert of("resid_post", tensor=(0, 2), sequence_parallel=True).axes[1].splits == (Split(Rule.SEQUENCE, 0, 2),)


def test_stages_make_the_model_together() -> None:
    first = standard_sites(MODEL, Coordinates(tensor=(0, 2), layers=(0, 2), last_stage=False))
    last = standard_sites(MODEL, Coordinates(tensor=(0, 2), layers=(1, 3), first_stage=False))

    together = {site.name: site for site in whole([*first, *last])}

    assert together["attn.q"].layers == (0, 1, 2, 3)
    assert {"embed", "logits", "grad.logits"} <= together.keys()
    assert not any(axis.splits for site in together.values() for axis in site.axes)


def test_names_with_a_star_mean_every_site_that_they_match() -> None:
    names = ["attn.q", "attn.k", "mlp.out", "grad.attn.q"]

    assert matching("attn.*", names) == ["attn.q", "attn.k"]
    assert matching("*", names) == names
    assert matching("mlp.down", names) == ["mlp.out"]


def test_probabilities_have_a_quantiser_of_their_own_and_their_gradients_have_not() -> None:
    assert [default_quantizer(name) for name in ("attn.probs", "grad.attn.probs", "attn.q")] == [
        "sqrt",
        "asinh",
        "asinh",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": "x" * 200},
        {"name": "../etc"},
        {"axes": (AXIS,) * 2},
        {"axes": (replace(AXIS, name="colour"),)},
        {"axes": (replace(AXIS, size=1 << 40),)},
        {"axes": (replace(AXIS, splits=(Split(Rule.TENSOR, 2, 2),)),)},
        {"axes": (replace(AXIS, splits=(Split(Rule.TENSOR, 0, 1 << 20),)),)},
        {"axes": (replace(AXIS, splits=(Split(Rule.TENSOR, 0, 1),) * 3),)},
        {"layers": (1 << 20,)},
        {"dtype": "x" * 99},
    ],
)
def test_what_a_rank_can_not_have_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError):
        replace(Site("attn.q", (AXIS,)), **wrong).checked()  # type: ignore[arg-type]


def test_every_standard_site_is_plausible() -> None:
    for site in standard_sites(replace(MODEL, experts=4), Coordinates(tensor=(1, 2), layers=(3,))):
        assert site.checked() is site


def test_sizes_of_a_forward_take_the_places_of_those_that_change() -> None:
    axes = (Axis("token", 0), AXIS)

    assert [axis.size for axis in resolved(axes, [5, 8])] == [5, 8]
    for wrong in ([5, 9], [5], [0, 8]):
        with pytest.raises(DataError):
            resolved(axes, wrong)
