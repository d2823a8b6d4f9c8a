"""What a generation has kept comes into another one: the same tokens or others, whole passes or the newest token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites
from megatronapp.trainer.plugins.scope.perturb import kept as module
from megatronapp.trainer.plugins.scope.perturb.kept import Kept
from megatronapp.trainer.plugins.scope.places import OF_LAYER, Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Capture

MODEL = Model(
    layers=2, hidden=4, heads=2, head_channels=2, mlp_channels=8, vocabulary=32, query_groups=2, batch=1, tokens=8
)
AT = Coordinates(layers=(0, 1))
SHARD = Shard(MODEL, AT, {site.name: site for site in standard_sites(MODEL, AT)})
NOWHERE = torch.nn.Module()
RESIDUAL = Spot("resid_post", 1, OF_LAYER["resid_post"], NOWHERE, NOWHERE)
PATTERN = Spot("attn.probs", 1, OF_LAYER["attn.probs"], NOWHERE, NOWHERE)


def request(name: str, *keep: str) -> GenerationRequest:
    return GenerationRequest(id=name, prompts=("a",), keep=keep)


def run(kept: Kept, name: str, spot: Spot, *passes: torch.Tensor, rows: int = 1) -> None:
    """A generation that keeps the spot's site, and computes its tokens in these passes."""
    kept.begin(request(name, f"layers[*].{spot.site}"), rows, 8)
    kept.pass_begin(name)
    first = 0
    for value in passes:
        for read in kept.wanted(spot):
            read(Capture(spot, value, SHARD.generating, 0, first_token=first, request=name))
        first += value.shape[0 if spot is RESIDUAL else 2]


def stream(tokens: int, begin: float = 0.0, rows: int = 1) -> torch.Tensor:
    """[token, batch, chan], each value another one."""
    return (torch.arange(tokens * rows * 4.0) + begin).view(tokens, rows, 4)


def test_the_same_tokens_are_put_in_place_also_where_passes_are_cut_otherwise() -> None:
    kept = Kept(SHARD)
    run(kept, "a", RESIDUAL, stream(3), stream(1, 100.0), stream(1, 200.0))

    whole = kept.patched(torch.zeros(5, 1, 4), RESIDUAL, "a", 5, {})
    newest = kept.patched(torch.zeros(1, 1, 4), RESIDUAL, "a", 4, {})
    beyond = kept.patched(torch.ones(1, 1, 4), RESIDUAL, "a", 9, {})

    assert torch.equal(whole, torch.cat([stream(3), stream(1, 100.0), stream(1, 200.0)]))
    assert torch.equal(newest, stream(1, 100.0))
    assert torch.equal(beyond, torch.ones(1, 1, 4))


def test_another_token_of_the_source_is_put_in_place() -> None:
    kept = Kept(SHARD)
    run(kept, "a", RESIDUAL, stream(3), stream(1, 100.0))
    value = torch.full((4, 1, 4), -1.0)

    patched = kept.patched(value, RESIDUAL, "a", 4, {0: 3, 2: 1, 3: 7})

    assert torch.equal(patched[0], stream(1, 100.0)[0])
    assert torch.equal(patched[2], stream(3)[1])
    assert torch.equal(patched[[1, 3]], value[[1, 3]])  # not named, and one that the source has not


def test_one_row_goes_to_all_and_the_given_value_stays_as_it_was() -> None:
    kept = Kept(SHARD)
    run(kept, "a", RESIDUAL, stream(2))
    value = torch.zeros(2, 3, 4)

    patched = kept.patched(value, RESIDUAL, "a", 2, {})

    assert torch.equal(patched, stream(2).expand(2, 3, 4))
    assert not value.any()


def test_of_patterns_the_keys_that_both_have_are_put_in_place() -> None:
    kept = Kept(SHARD)
    run(kept, "a", PATTERN, torch.full((1, 2, 2, 2), 0.5))

    patched = kept.patched(torch.zeros(1, 2, 2, 3), PATTERN, "a", 2, {})

    assert torch.equal(patched[..., :2], torch.full((1, 2, 2, 2), 0.5))
    assert not patched[..., 2].any()


def test_the_mean_is_over_rows_and_tokens_of_all_passes() -> None:
    kept = Kept(SHARD)
    first, second = stream(3, rows=2), stream(1, 50.0, rows=2)
    run(kept, "a", RESIDUAL, first, second, rows=2)

    mean = kept.mean(RESIDUAL, "a")

    assert torch.allclose(mean, torch.cat([first, second]).double().mean((0, 1), keepdim=True))
    with pytest.raises(DataError, match="no mean over its tokens"):
        kept.mean(PATTERN, "a")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        (("b", "resid_post", 1, 1), "run it first"),
        (("a", "mlp.out", 1, 1), "add it to its keep"),
        (("a", "resid_post", 1, 3), "give one, or as many"),
    ],
)
def test_what_is_not_kept_is_refused(asked: tuple[Any, ...], hint: str) -> None:
    kept = Kept(SHARD)
    run(kept, "a", RESIDUAL, stream(2, rows=2), rows=2)

    kept.require("a", "resid_post", 1, 2)
    with pytest.raises(DataError, match=hint):
        kept.require(*asked)


def test_the_oldest_generation_goes_unless_its_values_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 150)  # two generations of 2 layers × 8 tokens × 4 channels
    kept = Kept(SHARD)
    for name in ("a", "b"):
        kept.begin(request(name, "layers[*].resid_post"), 1, 8)

    kept.begin(request("c", "layers[*].resid_post"), 1, 8, in_use={"a"})

    kept.require("a", "resid_post", 0, None)
    kept.require("c", "resid_post", 0, None)
    with pytest.raises(DataError, match="run it first"):
        kept.require("b", "resid_post", 0, None)
    with pytest.raises(DataError, match="in use"):
        kept.begin(request("d", "layers[*].resid_post"), 1, 8, in_use={"a", "c"})
    with pytest.raises(DataError, match="keep fewer"):
        kept.begin(request("e", "layers[*].resid_post"), 9, 8)
    with pytest.raises(DataError, match="nothing that the model has"):
        kept.begin(request("f", "layers[*].nowhere"), 1, 8)


def test_a_pass_of_another_generation_adds_nothing() -> None:
    kept = Kept(SHARD)
    run(kept, "a", RESIDUAL, stream(2))

    assert not kept.pass_begin("other")
    for read in kept.wanted(RESIDUAL):
        read(Capture(RESIDUAL, stream(2, 7.0), SHARD.generating, 0, request="other"))

    assert torch.equal(kept.patched(torch.zeros(2, 1, 4), RESIDUAL, "a", 2, {}), stream(2))
