"""Shards of every layout, each reduced alone, make what the whole alone gives."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import MAX_SHARD_BYTES, pack, unpack
from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.core.scope.plan import Plan, PlanError, plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import reduce_shard
from megatronapp.core.scope.results import Counts, Partial, Result, Top, dims, of_frame, to_frame
from megatronapp.core.scope.sites import Axis, Coordinates, Model, Rule, Site, Split, standard_sites
from megatronapp.core.scope.stitch import canonical, needed, piece_of, stitch

MODEL = Model(
    layers=2,
    hidden=12,
    heads=4,
    head_channels=3,
    mlp_channels=8,
    vocabulary=24,
    query_groups=2,
    experts=4,
    expert_channels=6,
    gated=True,
    batch=1,
    tokens=8,
)
LAYOUTS = {
    "one": {},
    "tensor 2": {"tensor": 2},
    "tensor 2, sequence": {"tensor": 2, "sequence": True},
    "tensor 4, more than groups": {"tensor": 4, "sequence": True},
    "data 2": {"data": 2},
    "context 2": {"context": 2},
    "all": {"tensor": 2, "sequence": True, "data": 2, "context": 2, "expert": 2},
    "data 2, experts 2 of gathered tokens": {"data": 2, "expert": 2, "gather": True},
    "tensor 2, sequence, data 2, experts 2 of gathered tokens": {
        "tensor": 2,
        "sequence": True,
        "data": 2,
        "expert": 2,
        "gather": True,
    },
}
OPERATIONS = [
    "",
    "abs",
    "sqrt",
    "{axis}(1)",
    "{axis}(-3:)",
    "{axis}(0:6:2) | abs",
    "pool({axis},2,absmax)",
    "pool({axis},2,farthest)",
    "pool({axis},3)",
    "pool({axis},5,std) | {axis}(1)",
    "pool({axis},3,l2) | mean({axis})",
    "mean({axis})",
    "max({axis})",
    "min({axis})",
    "std({axis})",
    "sum({axis})",
    "norm({axis}) | abs",
    "entropy({axis})",
    "stats(mean,std,min,max,absmax,l2,zero,nonfinite,count,p01,p50,p99)",
    "stats(mean,p50,over={axis})",
    "hist(8,asinh)",
    "hist(8,-1,1)",
    "topk(3)",
    "mean({axis}) | stats(max)",
    "every(2) | {axis}(0) | when(nonfinite)",
]
SITES = {site.name: site for site in standard_sites(MODEL, Coordinates(layers=(0, 1)))}


def of_layout(
    tensor: int = 1, data: int = 1, context: int = 1, expert: int = 1, sequence: bool = False, gather: bool = False
) -> Iterator[dict[str, Site]]:
    """The sites of each rank of a layout. Of those that gather tokens expert-parallel ranks are replicas."""
    model = replace(MODEL, batch=2 // data)
    for t, d, c, e in product(range(tensor), range(data), range(context), range(expert)):
        if gather and e != d % expert:
            continue
        at = Coordinates(
            tensor=(t, tensor),
            data=(d, data),
            context=(c, context),
            expert=(e, expert),
            experts_gather=gather,
            sequence_parallel=sequence,
            layers=(0, 1),
        )
        yield {site.name: site for site in standard_sites(model, at)}


def shard(whole: Values, axes: tuple[Axis, ...]) -> Values:
    held = np.ix_(*(pieces(axis)[piece_index(axis)] for axis in axes))
    return Values(whole.array[held], None if whole.masked is None else whole.masked[held])


def whole_values(axes: tuple[Axis, ...], seed: int, *, odd: bool) -> Values:
    random = np.random.default_rng(seed)
    array = random.normal(size=[axis.size for axis in axes]).astype(np.float32)
    if not odd:
        return Values(np.abs(array))
    array[random.random(array.shape) < 0.05] = np.nan
    array[random.random(array.shape) < 0.05] = np.inf
    return Values(array, random.random(array.shape) < 0.2)


def alike(one: Result, other: Result) -> bool:
    match one, other:
        case Values(), Values():
            absent = one.absent
            same_states = np.array_equal(absent, other.absent) and other.missing is None
            kept = ~absent
            return same_states and np.allclose(one.array[kept], other.array[kept], rtol=2e-6, atol=1e-6, equal_nan=True)
        case Top(), Top():
            return (
                np.array_equal(one.indexes, other.indexes)
                and np.allclose(one.values, other.values, equal_nan=True)
                and np.allclose(one.log_sum_exp, other.log_sum_exp, rtol=1e-5, equal_nan=True)
            )
        case Counts(), Counts():
            return np.array_equal(one.counts, other.counts)
    return False


def through_the_wire(result: Result) -> Result:
    return of_frame(unpack(pack(to_frame(result, "f32")), MAX_SHARD_BYTES))


def stitched(made: Plan, ranks: list[tuple[Axis, ...]], whole: Values) -> tuple[Result, int]:
    shards = {}
    for axes in ranks:
        piece = canonical(made, piece_of(axes))
        reduced = reduce_shard(shard(whole, axes), axes, made.rank, partial=made.partial)
        assert (piece is None) == (reduced is None)
        if piece is not None and reduced is not None:
            shards.setdefault(piece, through_the_wire(reduced))
    return stitch(made, shards)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(SITES)),
    operations=st.sampled_from(OPERATIONS),
    data=st.data(),
    seed=st.integers(0, 99),
    odd=st.booleans(),
)
def test_the_shards_of_any_layout_make_the_whole(
    layout: str, name: str, operations: str, data: st.DataObject, seed: int, odd: bool
) -> None:
    ranks = [sites[name].axes for sites in of_layout(**LAYOUTS[layout])]
    axis = data.draw(st.sampled_from([axis.name for axis in ranks[0]]))
    expression = parse(" | ".join(part for part in (name, operations.format(axis=axis)) if part))
    whole = whole_values(ranks[0], seed, odd=odd)
    alone_axes = tuple(axis.whole for axis in ranks[0])
    try:
        made, alone = (plan(expression, name, axes) for axes in (ranks[0], alone_axes))
    except PlanError:
        return

    result, missing = stitched(made, ranks, whole)

    reference, _ = stitched(alone, [alone_axes], whole)
    assert missing == 0
    assert alike(reference, result)
    assert dims(result) == made.shape == alone.shape
    assert not alone.stitched


def test_keys_shared_by_neighbours_are_asked_of_one_rank() -> None:
    ranks = [sites["attn.k"].axes for sites in of_layout(tensor=4)]

    made = plan(parse("attn.k"), "attn.k", ranks[0])

    assert [canonical(made, piece_of(axes))[2] for axes in ranks] == [0, 0, 2, 2]
    assert len(needed(made)) == 2


def test_a_missing_shard_leaves_cells_that_say_so() -> None:
    ranks = [sites["attn.q"].axes for sites in of_layout(tensor=2)]
    made = plan(parse("attn.q | chan(0)"), "attn.q", ranks[0])
    whole = whole_values(ranks[0], 0, odd=False)
    came = reduce_shard(shard(whole, ranks[1]), ranks[1], made.rank)
    assert came is not None

    result, missing = stitch(made, {piece_of(ranks[1]): came})

    assert missing == 1
    assert isinstance(result, Values)
    assert result.missing is not None
    assert result.missing[:, :, :2].all()
    assert not result.missing[:, :, 2:].any()


def test_a_mean_without_a_shard_is_of_those_that_came() -> None:
    ranks = [sites["attn.q"].axes for sites in of_layout(tensor=2)]
    made = plan(parse("attn.q | mean(head)"), "attn.q", ranks[0])
    whole = whole_values(ranks[0], 0, odd=False)
    came = reduce_shard(shard(whole, ranks[1]), ranks[1], made.rank, partial=True)
    assert isinstance(came, Partial)

    result, missing = stitch(made, {piece_of(ranks[1]): came})

    assert missing == 1
    assert isinstance(result, Values)
    assert np.allclose(result.array, whole.array[:, :, 2:].mean(2))


def test_a_selection_of_one_head_is_asked_of_the_rank_that_has_it() -> None:
    ranks = [sites["attn.probs"].axes for sites in of_layout(tensor=2, data=2)]

    made = plan(parse("attn.probs | head(3) | batch(0)"), "attn.probs", ranks[0])

    assert [canonical(made, piece_of(axes)) is not None for axes in ranks] == [False, False, True, False]
    assert made.shape == (8, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        Values(np.zeros((2, 8, 3, 3), np.float32)),
        Values(np.zeros((2, 8, 2), np.float32)),
        Partial(np.zeros((2, 2, 8, 2, 3))),
        Counts(np.zeros((2, 8, 2, 3), np.uint32)),
        Top(*(np.zeros((2, 8, 2, 3), np.uint32),) * 2, np.zeros((2, 8, 2), np.float32)),
    ],
)
def test_a_shard_of_another_form_than_planned_is_refused(wrong: Result) -> None:
    axes = next(of_layout(tensor=2))["attn.q"].axes
    made = plan(parse("attn.q"), "attn.q", axes)

    with pytest.raises(DataError):
        stitch(made, {piece_of(axes): wrong})


def test_partials_of_another_number_of_components_are_refused() -> None:
    axes = next(of_layout(tensor=2))["attn.q"].axes
    made = plan(parse("attn.q | std(head)"), "attn.q", axes)

    with pytest.raises(DataError, match="expected 3"):
        stitch(made, {piece_of(axes): Partial(np.zeros((2, 2, 8, 3)))})


def test_nothing_is_no_picture() -> None:
    axes = next(of_layout(tensor=2))["attn.q"].axes

    with pytest.raises(DataError, match="no shard"):
        stitch(plan(parse("attn.q"), "attn.q", axes), {})


@given(size=st.integers(1, 40), parts=st.integers(1, 6), rule=st.sampled_from(sorted(Rule)))
def test_parts_cover_an_axis(size: int, parts: int, rule: Rule) -> None:
    found = pieces(Axis("chan", size, (Split(rule, 0, parts),)))

    covered = np.concatenate(found)
    even = size - size % 2 if rule is Rule.TENSOR_PAIRS else size
    assert set(covered.tolist()) == set(range(even))
    assert rule is Rule.TENSOR or len(covered) == even
