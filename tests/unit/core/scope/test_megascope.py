"""What MegaScope's users typed becomes an expression, or is refused; it is never evaluated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.scope.expression import ExpressionError, parse
from megatronapp.core.scope.megascope import SITES, read, translate


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


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("MLP1_mat_mul", "layers[*].mlp.fc1 | pool(chan,64,mean)"),
        ("MLP2_mat_mul | batch(0) | pixels(16) | data.amax(-1)", "layers[*].mlp.out | batch(0) | pool(chan,16,max)"),
        ("RawAttentionScore_mat_mul | head(0) | batch(0)", "layers[*].attn.probs | head(0) | batch(0)"),
        ("MLP2_Plot | batch(0)", "layers[*].mlp.out | batch(0) | pca(2)"),
        ("layers[3].attn.q | head(0) | data.mean(dim=-1)", "layers[3].attn.q | head(0) | pool(chan,96,mean)"),
        ("layers[3].mlp.act|pixels( 8 )", "layers[3].mlp.act | pool(chan,8,mean)"),
        ("layers[3].mlp.act | batch(0)", "layers[3].mlp.act | batch(0)"),
    ],
)  # fmt: skip
def test_its_words_stand_in_expressions(text: str, expression: str) -> None:
    assert str(read(text)) == expression


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("QKV_mat_mul", "write one: layers[*].attn.q | pool(chan,96,mean), or layers[*].attn.k"),
        ("MLP1_mat_mul | data.__class__", "is not translated"),
        ("MLP1_mat_mul | pixels(0)", "from 1 to"),
        ("MLP1_mat_mul | pixels(8) | pixels(9)", "say each once"),
        ("mlp.act | torch.load('x')", "is not translated"),
        ("MLP1_mat_mul" + " " * 600, "at most 512"),
    ],
)
def test_what_is_none_of_it_is_refused(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        read(text)

    assert says in str(refused.value)


WORDS = ["|", "QKV_mat_mul", "MLP2_Plot", "pixels(", "8", ")", "data.", "mean(-1)", " "]


@given(st.text() | st.lists(st.sampled_from(WORDS)).map("".join))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        found = read(text)
    except ExpressionError:
        return
    assert parse(str(found)) == found


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
