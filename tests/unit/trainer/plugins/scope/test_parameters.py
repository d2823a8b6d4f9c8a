"""Parameters and what the optimizer keeps of them: parts of any split make the whole, whatever is asked of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.plan import plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import reduce_shard as reference
from megatronapp.core.scope.results import Counts
from megatronapp.core.scope.sites import Axis
from megatronapp.core.scope.stitch import canonical, needed, piece_of, stitch
from megatronapp.trainer.plugins.scope.optimizer_states import Stretch
from megatronapp.trainer.plugins.scope.parameters import Held, held_states, held_weights, sites_of
from megatronapp.trainer.plugins.scope.reduce import reduce_shard
from megatronapp.trainer.plugins.scope.weights import Weight

WHOLE = np.random.default_rng(3).normal(size=(12, 10)).astype(np.float32)
WHOLE[2, 3], WHOLE[7, 1] = np.nan, np.inf
NAME = "layers.3.mlp.linear_fc1.weight"
SITE = "opt.exp_avg.mlp.linear_fc1.weight"
CUTS = {1: (0, 120), 2: (0, 47, 120), 3: (0, 5, 5, 120), 4: (0, 33, 71, 90, 120)}
"""Where a distributed optimizer's stretches begin, by the number of ranks: in the middle of rows, and of nothing."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatronapp.trainer.plugins.scope.weights.tensor_ranks", lambda _: (0, 1))


def states(ranks: int, name: str = NAME, whole: np.ndarray = WHOLE) -> list[Held]:
    """Of each data-parallel rank."""
    flat, cuts = torch.from_numpy(whole).view(-1), CUTS[ranks]
    weight = Weight(name, 3, torch.nn.Parameter(torch.from_numpy(whole)), gated=False)
    held = []
    for rank, (first, end) in enumerate(itertools.pairwise(cuts)):
        stretch = Stretch("exp_avg", rank, ranks, first, lambda first=first, end=end: flat[first:end])  # type: ignore[misc]
        held += held_states([weight], lambda _, stretch=stretch: [stretch])  # type: ignore[misc]
    return held


def shown(held: list[Held], operations: str) -> Any:
    """What the gateway makes of all parts."""
    expression = parse(f"layers[3].{held[0].site.name} | {operations}" if operations else f"layers[3].{SITE}")
    made = plan(expression, held[0].site.name, held[0].site.axes, quantizer="f32")
    found = {}
    for each in held:
        value = each.read()
        assert value is not None
        result = reduce_shard(value.value, value.absent, each.site.axes, made.rank, partial=made.partial)
        piece = canonical(made, piece_of(each.site.axes))
        if piece is not None and result is not None:
            found[piece] = result.on_host()
    assert found.keys() == needed(made)
    return stitch(made, found)[0]


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize(
    "operations",
    [
        "",
        "out(5)",
        "out(2:9) | in(1:8:2)",
        "mean(in)",
        "l2(out)",
        "absmax(in)",
        "pool(out,4,absmax) | pool(in,5,absmax)",
        "pool(out,4,mean) | pool(in,5,max)",
        "abs | sum(in)",
        "abs | max(out) | sqrt",
        "stats(mean,std,absmax,l2,zero,nonfinite,count)",
        "stats(mean,absmax,over=in)",
        "hist(16,-3,3)",
    ],
)
def test_stretches_of_a_distributed_optimizer_make_the_whole(ranks: int, operations: str) -> None:
    axes = (Axis("out", 12), Axis("in", 10))
    asked = parse(f"{SITE} | {operations}").operations if operations else ()

    found = shown(states(ranks), operations)

    expected = reference(Values(WHOLE), axes, asked)
    if isinstance(expected, Counts):
        assert np.array_equal(found.counts, expected.counts)
        return
    assert isinstance(expected, Values)
    assert found.array.shape == expected.array.shape
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-6)
    assert found.masked is None


def test_one_rank_of_the_data_has_no_axis_of_shards() -> None:
    [held] = states(1)

    assert [axis.name for axis in held.site.axes] == ["out", "in"]
    assert [axis.name for axis in states(2)[0].site.axes] == ["shard", "out", "in"]


def test_a_shard_can_be_asked_for_by_itself() -> None:
    found = shown(states(2), "shard(1) | out(11)")

    np.testing.assert_array_equal(found.array, WHOLE[11])


def test_a_state_that_the_optimizer_has_not_made_yet_is_not_shown() -> None:
    weight = Weight(NAME, 3, torch.nn.Parameter(torch.ones(2, 2)), gated=False)
    [held] = held_states([weight], lambda _: [Stretch("exp_avg", 0, 1, 0, lambda: None)])

    assert held.read() is None


def test_each_parameter_is_a_site_with_the_layers_that_have_it() -> None:
    given = [
        Weight(f"layers.{layer}.{name}", layer, torch.nn.Parameter(torch.ones(*shape)), gated=False)
        for layer in (2, 0)
        for name, shape in (("mlp.linear_fc2.weight", (4, 8)), ("input_layernorm.weight", (4,)))
    ]
    given += [Weight("embedding.word_embeddings.weight", None, torch.nn.Parameter(torch.ones(6, 4)), gated=False)] * 2
    given += [Weight("layers.2.mlp.experts.weight1", 2, torch.nn.Parameter(torch.ones(4, 8)), gated=False)]
    given += [Weight("layers.5.mlp.linear_fc2.weight", 5, torch.nn.Parameter(torch.ones(4, 2)), gated=False)]

    held = held_weights(given)

    assert {name: (site.layers, [axis.name for axis in site.axes]) for name, site in sites_of(held).items()} == {
        "weight.mlp.linear_fc2.weight": ((0, 2), ["out", "in"]),
        "weight.input_layernorm.weight": ((0, 2), ["out"]),
        "weight.embedding.word_embeddings.weight": ((), ["out", "in"]),
    }
    assert len(held) == 5
    assert all(site.checked() for site in sites_of(held).values())
