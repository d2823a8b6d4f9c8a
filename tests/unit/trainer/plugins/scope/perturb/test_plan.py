"""Plans as they are asked for: checked whole before anything is done."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.intervention import Intervention
from megatronapp.trainer.plugins.scope.perturb.plan import Plan

NOISE = {"place": "calculation", "site": "mlp.out", "kind": "noise1", "coefficient": 0.1}


def test_a_plan_is_read_with_what_is_left_out() -> None:
    plan = Plan.parse(
        {"plan": "p", "seed": "18446744073709551615", "replica": 1, "perturbations": [NOISE, {**NOISE, "off": True}]}
    )

    [made] = plan.perturbations
    assert (plan.name, made.seed, made.replica, made.number) == ("p", 2**64 - 1, 1, 0)
    assert 5 in made.layers
    assert 10**6 in made.steps
    assert not made.redraw


@pytest.mark.parametrize(
    ("wish", "site"),
    [
        ({"place": "storage", "kind": "noise1"}, "*.linear_*.weight"),
        ({"place": "calculation", "kind": "noise1"}, "mlp.out"),
        ({"place": "system", "kind": "noise1"}, "resid_post"),
    ],
)
def test_each_place_has_a_site_of_its_own(wish: dict[str, Any], site: str) -> None:
    assert Plan.parse({"perturbations": [wish]}).perturbations[0].site == site


def test_a_constant_goes_to_some_of_the_channels() -> None:
    [made] = Plan.parse({"perturbations": [{"kind": "constant", "coefficient": 1.0}]}).perturbations

    assert [channel for channel in range(20) if channel in made.channels] == [0, 8, 16]


@pytest.mark.parametrize(
    "wish",
    [
        {"place": "elsewhere"},
        {"kind": "patch"},
        {"kind": "explode"},
        {"coefficient": "much"},
        {"coefficient": float("nan")},
        {"layers": 3},
        {"layers": "x"},
        {"kind": "swap_heads", "heads": "0"},
        {"kind": "swap_heads", "heads": "0,1", "with_heads": "1,2"},
        {"place": "storage", "heads": "1"},
        {"place": "storage", "kind": "swap_heads", "heads": "0", "with_heads": "1"},
        {"place": "system", "site": "mlp.out"},
        "noise",
    ],
)
def test_what_makes_no_sense_is_refused(wish: Any) -> None:
    with pytest.raises(DataError):
        Plan.parse({"perturbations": [wish]})


@pytest.mark.parametrize("document", [{}, {"perturbations": []}, {"perturbations": [NOISE] * 65}, {"perturbations": 1}])
def test_a_plan_holds_some_perturbations(document: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Plan.parse(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "place",
    "site",
    "kind",
    "coefficient",
    "layers",
    "heads",
    "tokens",
    "channels",
    "steps",
    "bits",
    "with_heads",
)
WISHES = st.dictionaries(
    st.sampled_from((*FIELDS, "redraw", "off", "x")), JSON | st.sampled_from(["storage", "bit_flip"])
)
PLANS = st.fixed_dictionaries(
    {"perturbations": JSON | st.lists(WISHES, max_size=3)}, optional={"seed": JSON, "replica": JSON}
)


@given(PLANS)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_a_plan_or_refused(document: dict[str, Any]) -> None:
    try:
        plan = Plan.parse(document)
    except DataError:
        return
    assert isinstance(plan, Plan)


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ({"kind": "patch", "source": "a"}, "name it as request"),
        ({"kind": "mean"}, "needs the id"),
        ({"kind": "steer", "source": "a", "vector": [1.0]}, "needs the id"),
        ({"kind": "steer", "vector": [1.0], "baseline": "b"}, "belongs to a steering source"),
        ({"kind": "mean", "source": "a", "baseline": "b"}, "belongs to a steering source"),
        ({"kind": "steer", "vector": [float("nan")]}, "finite"),
        ({"kind": "steer", "vector": ["x"]}, "numbers"),
        ({"kind": "zero", "source": "a"}, "takes no values"),
        ({"kind": "steer", "place": "storage", "vector": [1.0]}, "weights have neither"),
        ({"kind": "zero", "source_tokens": "1"}, "belong to a patch"),
    ],
)
def test_values_come_from_one_place(wish: dict[str, Any], word: str) -> None:
    with pytest.raises(DataError, match=word):
        Plan.parse({"perturbations": [wish]})


@pytest.mark.parametrize(("tokens", "there"), [("", "1"), ("1,2", "1"), ("2:", "1"), ("1,1", "2,3"), ("1", "2:")])
def test_a_patch_from_other_tokens_names_as_many(tokens: str, there: str) -> None:
    asked = Intervention(kind="patch", site="resid_post", source="a", tokens=tokens, source_tokens=there)

    with pytest.raises(DataError, match="as many as tokens"):
        Plan.of_request(GenerationRequest(prompts=("x",), interventions=(asked,)))


def test_a_request_s_interventions_are_a_plan_of_its_own() -> None:
    asked = Intervention(kind="patch", site="resid_post", source="a", rows="1")
    request = GenerationRequest(prompts=("x",), id="r", interventions=(asked,), intervention_seed=3)

    plan = Plan.of_request(request)

    [made] = plan.perturbations
    assert (plan.request, made.request, made.source, made.seed) == ("r", "r", "a", 3)
    assert 1 in made.rows
    assert 0 not in made.rows
