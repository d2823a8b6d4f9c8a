"""What MegaScope's users typed becomes an expression, or is refused; it is never evaluated."""

import pytest

from megatronapp.core.scope.expression import ExpressionError, parse
from megatronapp.core.scope.megascope import SITES, translate


@pytest.mark.parametrize(
    ("method", "operations"),
    [
        ("data.mean(dim=-1)", "pool(chan,96,mean)"),
        ("data.mean(-1)", "pool(chan,96,mean)"),
        ("data.abs().max(dim=-1).values", "pool(chan,96,absmax)"),
        ("data.abs().mean(dim = -1)", "abs | pool(chan,96,mean)"),
        ("torch.std(data, dim=-1)", "pool(chan,96,std)"),
        ("torch.max(torch.abs(data), dim=-1)[0]", "pool(chan,96,absmax)"),
        ("data.norm(dim=-1)", "pool(chan,96,l2)"),
    ],
)
def test_methods_become_pools_of_its_pixels(method: str, operations: str) -> None:
    assert translate("QKV_mat_mul", 96, method) == tuple(f"layers[*].attn.{x} | {operations}" for x in "qkv")


@pytest.mark.parametrize("kind", SITES)
def test_every_kind_of_it_has_expressions(kind: str) -> None:
    for text in translate(kind):
        parse(text)


@pytest.mark.parametrize("method", ["__import__('os')", "data.mean(dim=0)", "data.pin_memory(-1)", "", "x" * 10**6])
def test_other_code_is_refused_with_what_to_write(method: str) -> None:
    with pytest.raises(ExpressionError, match="write an expression"):
        translate("MLP1_mat_mul", 64, method)


def test_pixels_beyond_reason_are_refused() -> None:
    with pytest.raises(ExpressionError, match="from 1 to"):
        translate("MLP1_mat_mul", 10**9)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ExpressionError, match="QKV_mat_mul"):
        translate("Weights")
