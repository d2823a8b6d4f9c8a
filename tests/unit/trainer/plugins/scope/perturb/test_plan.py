"""Plans as they are asked for: checked whole before anything is done."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
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
