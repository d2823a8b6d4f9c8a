"""Points of a PCA are known by their place in the model's texts."""

import pytest

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.plan import plan
from megatronapp.gateway.scope.assembly import PictureKey
from megatronapp.gateway.scope.beside import UNKNOWN, row_places
from tests.support.scope_pods import whole_site

NONE = UNKNOWN


@pytest.mark.parametrize(
    ("expression", "request_", "shape", "places"),
    [
        ("resid_post | pca(2)", "", (2, 8), [(entry, at) for entry in range(2) for at in range(8)]),
        ("resid_post | batch(1) | last(3) | pca(2)", "", (3,), [(1, 5), (1, 6), (1, 7)]),
        ("resid_post | token(1:8:3) | batch(-1) | pca(2)", "", (3,), [(1, 1), (1, 4), (1, 7)]),
        ("resid_post | token(-2) | pca(2)", "", (2,), [(0, 6), (1, 6)]),
        ("attn.q | head(0:2) | token(4) | batch(0) | pca(2)", "", (2,), [(0, 4), (0, 4)]),
        ("resid_post | mean(batch) | last(2) | pca(2)", "", (2,), [(NONE, 6), (NONE, 7)]),
        ("resid_post | pool(token,2,mean) | batch(0) | pca(2)", "", (2,), [(0, NONE), (0, NONE)]),
        # A pass of a generation has the rows up to its step's.
        ("resid_post | batch(0) | last(2) | pca(2)", "g", (2,), [(0, 19), (0, 20)]),
        ("resid_post | batch(0) | token(0) | pca(2)", "g", (), [(0, 13)]),
    ],
)  # fmt: skip
def test_each_row_has_its_entry_and_position(
    expression: str, request_: str, shape: tuple[int, ...], places: list[tuple[int, int]]
) -> None:
    parsed = parse(f"layers[0].{expression}")
    axes = whole_site(parsed.selector.site).axes
    made = plan(parsed, parsed.selector.site, axes)

    found = row_places(made, PictureKey(0, 20, None, request_, tuple(axis.size for axis in axes)), shape)

    assert [tuple(map(int, each)) for each in found] == places
