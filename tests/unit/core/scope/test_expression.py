"""Expressions are understood as documented, come back from their canonical text, and no text does anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.scope.arguments import OPERATIONS
from megatronapp.core.scope.expression import MAX_CHARACTERS, Expression, ExpressionError, parse
from megatronapp.core.scope.operations import Pool, Reducer, Selector, Slice, Take

EXAMPLES = [
    "layers[0:32:4].attn.probs | head(3) | last(256)",
    "layers[*].mlp.act | token(-128:) | pool(chan,64,absmax)",
    "layers[*].resid_post | stats(mean,std,absmax,p01,p50,p99,zero,nonfinite)",
    "logits | topk(20)",
    "layers[*].resid_post | logitlens(5)",
    "layers[*].resid_post | pca(2,basis=pinned)",
    "layers[-1].attn.* | hist(64,asinh)",
    "layers[0,3,7:9].mlp.out | diff(baseline)",
    "layers[1].opt.exp_avg.mlp.experts.experts.12.linear_fc1.weight | out(0:8) | in(3)",
    "grad.weight.mlp.fc1 | norm(chan) | every(10) | when(absmax>1000)",
    "layers[*].attn.probs | head(0:8:2) | query(-1) | entropy(key)",
    "layers[*].mlp.act | hist(32,-1.5,2)",
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_expression_comes_back_from_its_canonical_text(text: str) -> None:
    parsed = parse(text)

    assert parse(str(parsed)) == parsed
    assert str(parse(str(parsed))) == str(parsed)


def test_the_parts_of_an_expression() -> None:
    parsed = parse(" model.layers[0:8:2,-1].mlp.act|tok(-4:)|pool(channel, 64) ")

    assert parsed == Expression(
        Selector("mlp.act", (Slice(0, 8, 2), -1)), (Take("token", Slice(-4)), Pool("chan", 64, Reducer.MEAN))
    )
    assert parsed.selector.numbers(12) == [0, 2, 4, 6, 11]


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "site's name is missing"),
        ("layers[0].attn.q | evil(1)", 19, "no operation evil"),
        ("layers[0].attn.q | pool(chan,0)", 29, "from 1 to 4096"),
        ("layers[0.attn.q", 7, "not a whole number"),
        ("layers[0 .attn.q", 9, "']' is missing"),
        ("logits | topk(20", 16, "')' is missing"),
        ("logits | topk(x)", 14, "write topk"),
        ("logits topk", 7, "'topk' is not expected"),
        ("logits | hist(8,1,1)", 16, "range is empty"),
        ("logits | stats(mode)", 15, "no statistic mode"),
        ("logits | when(rank>3)", 14, "no condition"),
        ("logits | head(1:2:0)", 18, "a step of 0"),
        ("logits | topk(1e400)", 14, "too large"),
        ("x" * 600, MAX_CHARACTERS, "at most 512"),
        ("x" + " | abs" * 9, 52, "at most 8"),
        ("__import__('os').system('ls')", 10, "not expected"),
        ("data.mean(dim=-1)", 9, "not expected"),
        ("x | stats(mean,over=data)", 15, "write stats"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_to_write(text: str, position: int, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)

    assert (caught.value.position, says in str(caught.value)) == (position, True), str(caught.value)


PARTS = ["layers", "[", "]", "*", ".", "|", "(", ")", ",", ":", "=", "<", "-1", "3", "1e9", "é", " ", "__class__", "ſ"]


@given(st.text(max_size=80) | st.lists(st.sampled_from([*PARTS, *OPERATIONS]), max_size=30).map("".join))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        parsed = parse(text)
    except ExpressionError as error:
        position = error.position
    else:
        position = 0
        assert parse(str(parsed)) == parsed

    assert 0 <= position <= len(text)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_written_as_its_hint_says(name: str) -> None:
    for written in OPERATIONS[name].written.split(" or "):
        for each in written.split("), "):
            parse(f"x | {each if each.endswith(')') or '(' not in each else each + ')'}")
