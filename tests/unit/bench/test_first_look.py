"""What the page shows first of a generation, as a rank is asked for it. Its own tests hold the page to the file."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench import _first_look
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites

HIDDEN, TOKENS = 2048, 2048


def sites(hidden: int = HIDDEN) -> list[Mapping[str, Any]]:
    """Of a model on one rank, while it generates."""
    model = Model(
        layers=2,
        hidden=hidden,
        heads=16,
        head_channels=hidden // 16,
        mlp_channels=hidden,
        vocabulary=64,
        query_groups=4,
        batch=0,
        tokens=0,
    )
    return [
        {"name": site.name, "axes": [asdict(axis) for axis in site.axes]}
        for site in standard_sites(model, Coordinates(layers=(0, 1)))
    ]


def expressions(max_positions: int) -> list[str]:
    return [tap["expression"] for tap in _first_look.taps(sites(), max_positions, "request")]


def test_a_long_generation_is_pooled_to_the_page_on_the_rank() -> None:
    probabilities, stream, _ = expressions(TOKENS)

    assert probabilities == "layers[0].attn.probs | head(0) | pool(key,704,farthest) | pool(query,704,farthest)"
    assert stream == "layers[0].resid_post | pool(token,120,farthest)"


def test_a_short_generation_is_shown_as_it_is() -> None:
    probabilities, stream, _ = expressions(64)

    assert (probabilities, stream) == ("layers[0].attn.probs | head(0)", "layers[0].resid_post")


def test_principal_components_ask_a_rank_for_whole_rows() -> None:
    assert expressions(TOKENS)[2] == "layers[0].resid_post"


def test_each_tap_is_of_the_one_request() -> None:
    taps = _first_look.taps(sites(), TOKENS, "page-1")

    assert [tap["id"] for tap in taps] == [1, 2, 3]
    assert {tap["request"] for tap in taps} == {"page-1"}
