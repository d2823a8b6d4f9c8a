"""Before anything is done it is known what would come, what it costs, and where it runs."""

import pytest

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import Kind
from megatronapp.core.scope.plan import Plan, PlanError, plan
from megatronapp.core.scope.sites import Axis, Coordinates, Model, standard_sites

MODEL = Model(layers=2, hidden=64, heads=8, head_channels=8, mlp_channels=256, vocabulary=1000)
SITES = {
    site.name: site for site in standard_sites(MODEL, Coordinates(tensor=(0, 2), sequence_parallel=True, layers=(0, 1)))
}
EXPECTED = {"batch": 2, "token": 128, "query": 128, "key": 128}


def planned(text: str, **limits: int) -> Plan:
    expression = parse(text)
    site = expression.selector.site
    return plan(expression, site, SITES[site].axes, logits=SITES["logits"].axes, expected=EXPECTED, **limits)


def parts(text: str) -> tuple[list[str], bool, list[str]]:
    made = planned(text)
    return [str(each) for each in made.rank], made.partial, [str(each) for each in (*made.gateway, *made.beside)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attn.q | abs | mean(chan)", (["abs", "mean(chan)"], False, [])),
        ("attn.q | mean(head) | max(chan)", (["mean(head)"], True, ["max(chan)"])),
        ("mlp.act | pool(chan,64)", (["pool(chan,64,mean)"], False, [])),
        ("mlp.act | pool(chan,3)", (["pool(chan,3,mean)"], True, [])),
        ("resid_post | pool(token,64)", (["pool(token,64,mean)"], True, [])),
        ("attn.probs | last(16)", (["query(-16:)"], False, [])),
        ("attn.q | last(16)", (["token(-16:)"], False, [])),
        ("logits | topk(5)", (["topk(5)"], True, [])),
        ("resid_post | stats(mean)", (["stats(mean)"], True, [])),
        ("resid_post | stats(mean,over=chan)", (["stats(mean,over=chan)"], False, [])),
        ("resid_post | pca(2)", ([], False, ["pca(2)"])),
        ("resid_post | token(-4:) | logitlens(3)", (["token(-4:)", "logitlens(3)"], True, [])),
        ("attn.q | every(10) | when(nonfinite)", ([], False, [])),
    ],
)
def test_what_a_shard_can_do_alone_runs_on_its_rank(text: str, expected: tuple[list[str], bool, list[str]]) -> None:
    assert parts(text) == expected


@pytest.mark.parametrize(
    ("text", "axes", "shape", "kind"),
    [
        ("attn.q | head(3)", ("batch", "token", "chan"), (0, 0, 8), Kind.TENSOR),
        ("attn.probs | head(3) | batch(0) | last(32)", ("query", "key"), (0, 0), Kind.TENSOR),
        ("logits | topk(5)", ("batch", "token", "candidate"), (0, 0, 5), Kind.TOPK),
        ("resid_post | logitlens(5)", ("batch", "token", "candidate"), (0, 0, 5), Kind.TOPK),
        ("resid_post | hist(64)", ("bin",), (64,), Kind.HIST),
        ("resid_post | stats(mean,p50)", ("statistic",), (2,), Kind.TENSOR),
        ("resid_post | batch(0) | pca(2)", ("row", "component"), (0, 2), Kind.TENSOR),
        ("resid_post | kl(clean)", ("batch", "token"), (0, 0), Kind.TENSOR),
        ("resid_post | diff(clean)", ("batch", "token", "chan"), (0, 0, 64), Kind.TENSOR),
    ],
)
def test_axes_and_shape_are_told_before(text: str, axes: tuple[str, ...], shape: tuple[int, ...], kind: Kind) -> None:
    made = planned(text)

    assert (made.axes, made.shape, made.kind) == (axes, shape, kind)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("attn.q | key(0)", "invalid", "it has batch, token, head, chan"),
        ("attn.q | head(3) | mean(head)", "invalid", "no axis head"),
        ("attn.q | head(8)", "invalid", "the model has 8"),
        ("attn.q | head(9:)", "invalid", "is empty"),
        ("logits | topk(5) | abs", "invalid", "topk(5) comes last"),
        ("attn.q | logitlens(5)", "invalid", "resid_post"),
        ("resid_post | mean(token) | logitlens(5)", "invalid", "whole rows"),
        ("resid_post | chan(0:3) | logitlens(5)", "invalid", "whole rows"),
        ("resid_post | mean(chan) | mean(token) | mean(batch) | pca(2)", "invalid", "there is none"),
        ("attn.q | chan(0) | topk(3)", "invalid", "nothing is left"),
        ("logits | every(2)", "too_large", "slice it, or pool"),
    ],
)
def test_what_means_nothing_or_too_much_is_refused_before(text: str, code: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(text, max_bytes=200_000)

    assert (caught.value.code, says in str(caught.value)) == (code, True), str(caught.value)


def test_bytes_and_cost_grow_with_what_is_asked_for() -> None:
    small, large = planned("mlp.act | pool(chan,16)"), planned("mlp.act")

    assert small.frame_bytes("asinh") == 80 + 2 * 128 * 16
    assert large.frame_bytes("f32") == 80 + 2 * 128 * 256 * 4
    assert large.cost_microseconds("asinh") < large.cost_microseconds("f32")
    assert planned("mlp.act | stats(std)").cost_microseconds("f32") < planned("mlp.act | stats(p50)").cost_microseconds(
        "f32"
    )
    assert large.shard_elements == 2 * 128 * 128


def test_steps_are_those_of_all_conditions() -> None:
    made = planned("attn.q | every(4) | every(6) | head(0)")

    assert (made.every, [str(each) for each in made.rank]) == (12, ["head(0)"])


def test_pooling_is_marked() -> None:
    assert planned("mlp.act | pool(chan,16)").downsampled
    assert not planned("mlp.act | pool(chan,4096)").downsampled


def test_an_index_that_another_forward_may_have_is_no_error() -> None:
    assert planned("attn.q | token(500)").shape == (0, 8, 8)


def test_an_unknown_quantiser_is_refused() -> None:
    with pytest.raises(PlanError, match="asinh"):
        plan(parse("x"), "x", [Axis("chan", 4)], quantizer="exec")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attn.q | head(0) | when(absmax>1000)", "absmax>1000"),
        ("attn.q | head(0) | when(nonfinite)", "nonfinite"),
        ("attn.q | head(0)", ""),
        ("attn.q | when(absmax>1000)", ""),
        ("attn.q | head(0) | pca(2) | when(nonfinite)", ""),
    ],
)
def test_a_condition_is_the_ranks_where_it_alone_makes_the_picture(text: str, expected: str) -> None:
    assert planned(text).condition_of_rank == expected
