"""Names of hook points as TransformerLens has them."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.scope.captures import Wanted
from megatronapp.core.scope.transformer_lens import grouped, hook_names, place_of, wanted

ROTATED = ["embed", "resid_post", "attn.q_pre", "attn.q", "attn.k", "attn.probs", "mlp.gate", "mlp.up", "logits"]
PLAIN = ["embed", "resid_post", "attn.q", "attn.probs", "mlp.fc1", "logits"]


def test_queries_before_rotation_have_the_name_that_they_have_there() -> None:
    names = hook_names(ROTATED, 2)

    assert names["blocks.1.attn.hook_q"] == ("attn.q_pre", 1)
    assert names["blocks.1.attn.hook_rot_q"] == ("attn.q", 1)
    assert names["blocks.0.mlp.hook_pre"] == ("mlp.gate", 0)
    assert hook_names(PLAIN, 2)["blocks.1.attn.hook_q"] == ("attn.q", 1)
    assert hook_names(PLAIN, 2)["blocks.0.mlp.hook_pre"] == ("mlp.fc1", 0)


def test_with_learned_positions_the_embedding_is_another_value() -> None:
    assert "hook_embed" in hook_names(PLAIN, 1)
    assert "hook_embed" not in hook_names(PLAIN, 1, learned_positions=True)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("blocks.*.attn.hook_pattern", 3), ("hook_pattern", 3), ("blocks.2.attn.hook_pattern", 1), ("logits", 1)],
)
def test_patterns_mean_hook_points(pattern: str, count: int) -> None:
    assert len(wanted([pattern], ROTATED, 3)) == count


def test_what_is_none_is_refused_with_what_is_near() -> None:
    with pytest.raises(UsageError, match="hook_pattern"):
        wanted(["blocks.0.attn.hook_patern"], ROTATED, 2)


def test_a_site_is_asked_for_once_with_all_its_layers() -> None:
    names = wanted(["hook_pattern", "blocks.0.attn.hook_pattern", "logits"], ROTATED, 2)

    assert grouped(names.values()) == [Wanted("attn.probs", (0, 1)), Wanted("logits")]


def test_saes_are_named_after_their_layer() -> None:
    names = wanted(["sae.one", "blocks.*.sae.t*"], PLAIN, 2, saes={"sae.one": (1,), "sae.two": (0,)})

    assert names == {"blocks.1.sae.one": ("sae.one", 1), "blocks.0.sae.two": ("sae.two", 0)}


def test_hook_points_that_all_models_have_are_places() -> None:
    assert place_of("blocks.11.hook_resid_post") == ("resid_post", 11)
    assert place_of("blocks.3.attn.hook_q") is None  # of what is rotated another site
    assert place_of("blocks.x.hook_resid_post") is None
