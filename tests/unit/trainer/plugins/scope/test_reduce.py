"""Reductions on tensors are those of the NumPy reference, of every part of every split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from megatronapp.core.scope import reduce as reference
from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.core.scope.operations import (
    Elementwise,
    Hist,
    Operation,
    Pool,
    Reduce,
    Reducer,
    Slice,
    Stats,
    Take,
    TopK,
)
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Counts, Partial, Result, Top
from megatronapp.core.scope.sites import Axis, Rule, Split
from megatronapp.trainer.plugins.scope import patterns
from megatronapp.trainer.plugins.scope.derived import reduce_attention
from megatronapp.trainer.plugins.scope.frames import split
from megatronapp.trainer.plugins.scope.reduce import reduce_entries, reduce_shard
from megatronapp.trainer.plugins.scope.reduced import Completed, completed

SIZES = {"batch": 2, "token": 12, "head": 4, "chan": 6}
SPLITS = {
    "batch": (),
    "token": ((), (Split(Rule.SEQUENCE, 1, 2),), (Split(Rule.CONTEXT, 0, 2),)),
    "head": ((), (Split(Rule.TENSOR, 1, 2),)),
    "chan": ((), (Split(Rule.TENSOR_PAIRS, 0, 3),)),
}
FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 3.5, -1e20, float("nan"), float("inf"), float("-inf")])
REDUCERS = st.sampled_from(list(Reducer))
AXES = st.sampled_from(list(SIZES))
ELEMENTWISE = st.sampled_from([Elementwise("abs"), Elementwise("sqrt")])
TAKES = st.builds(
    Take,
    AXES,
    st.one_of(st.integers(0, 1), st.builds(Slice, st.integers(0, 3) | st.none(), st.none(), st.none() | st.just(2))),
)
POOLS = st.builds(Pool, AXES, st.integers(1, 8), REDUCERS)
ENDS = st.one_of(
    POOLS,
    st.builds(Reduce, REDUCERS, AXES),
    st.just(Stats(("mean", "std", "min", "max", "absmax", "l2", "zero", "nonfinite", "count", "p01", "p50", "p99"))),
    st.builds(Stats, st.just(("mean", "p50")), AXES),
    st.sampled_from([Hist(8), Hist(5, -1.0, 4.0)]),
    st.builds(TopK, st.integers(1, 9)),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[Axis, ...], Any, Any, list[Operation], bool]:
    axes = tuple(Axis(name, size, draw(st.sampled_from(SPLITS[name] or ((),)))) for name, size in SIZES.items())
    shape = tuple(len(pieces(axis)[piece_index(axis)]) for axis in axes)
    values = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape).astype(np.float32)
    for _ in range(draw(st.integers(0, 3))):
        values.reshape(-1)[draw(st.integers(0, values.size - 1))] = draw(FLOATS)
    masked = np.random.default_rng(5).random(shape) < 0.3 if draw(st.booleans()) else None
    operations = [*draw(st.lists(st.one_of(ELEMENTWISE, TAKES), max_size=2, unique_by=str)), draw(ENDS)]
    return axes, values, masked, operations, draw(st.booleans())


@given(cases())
@settings(max_examples=120, deadline=None)
def test_reductions_equal_the_reference(case: tuple[tuple[Axis, ...], Any, Any, list[Operation], bool]) -> None:
    axes, values, masked, operations, partial = case
    array = values.copy()
    if masked is not None:
        array[masked] = np.nan
    try:
        expected = reference.reduce_shard(Values(array, masked), axes, operations, partial=partial)
    except (StopIteration, IndexError):  # an index was taken of an axis that is gone: a plan refuses it
        return

    found = reduce_shard(
        torch.from_numpy(values),
        None if masked is None else torch.from_numpy(masked),
        axes,
        operations,
        partial=partial,
    )

    if expected is None:
        assert found is None
    else:
        assert found is not None
        _assert_same(found.on_host(), expected)


@given(
    st.lists(st.builds(Take, AXES, st.integers(-5, 5) | st.just(Slice(1))), max_size=3),
    st.sampled_from([(), (Split(Rule.TENSOR, 0, 1),), (Split(Rule.TENSOR, 1, 2),)]),
)
def test_single_entries_are_taken_as_any_reduction_takes_them(takes: list[Take], split: tuple[Split, ...]) -> None:
    axes = tuple(Axis(name, size, split if name == "head" else ()) for name, size in SIZES.items())
    shape = [len(pieces(axis)[piece_index(axis)]) for axis in axes]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3)).bfloat16().permute(1, 0, 2, 3)
    values = values.contiguous().permute(1, 0, 2, 3)

    found = reduce_entries(values, axes, takes)

    if found is not None:
        expected = reduce_shard(values, None, axes, takes)
        assert expected is not None
        _assert_same(found.on_host(), expected.on_host())
    plain = all(isinstance(take.pick, int) and -SIZES[take.axis] <= take.pick < SIZES[take.axis] for take in takes)
    whole = len(split) == 0 or split[0].parts == 1 or all(take.axis != "head" for take in takes)
    assert (found is not None) == (plain and whole and len({take.axis for take in takes}) == len(takes))


STATISTICS = Stats(("mean", "std", "min", "max", "absmax", "l2", "zero", "nonfinite", "count", "p01", "p50", "p99"))


@given(st.lists(FLOATS | st.floats(width=32), max_size=20), st.booleans(), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_statistics_of_counted_patterns_equal_those_of_the_values(
    special: list[float], partial: bool, seed: int
) -> None:
    """bfloat16: many sites at once, as at the end of a step."""
    axes = (Axis("token", 16), Axis("chan", 8))
    generator = torch.Generator().manual_seed(seed)
    sites = [(torch.randn(16, 8, generator=generator) * 10.0**power).bfloat16() for power in (-3, 0, 3)]
    sites[1].view(-1)[: len(special)] = torch.tensor(special).bfloat16()

    reduced = [reduce_shard(values, None, axes, [STATISTICS], partial=partial) for values in sites]

    assert all(each is not None and each.counted is not None for each in reduced)
    together = completed([each for each in reduced if each is not None])
    arrays = together.of([tensor.numpy() for tensor in together.tensors])
    assert len(together.tensors) == 1
    for values, each, found in zip(sites, reduced, arrays, strict=True):
        assert each is not None
        expected = reference.reduce_shard(Values(values.float().numpy()), axes, [STATISTICS], partial=partial)
        assert expected is not None
        _assert_same(each.finish(found), expected)


def test_more_values_than_a_tally_holds_are_counted() -> None:
    axes = (Axis("token", 4),)
    reduced = [
        reduce_shard(torch.full((4,), float(number)).bfloat16(), None, axes, [Stats(("mean",))])
        for number in range(patterns.VALUES + 2)
    ]

    together = completed([each for each in reduced if each is not None])

    found = together.of([tensor.numpy() for tensor in together.tensors])
    assert [float(array[0]) for [array] in found] == list(range(patterns.VALUES + 2))


def test_results_of_several_kinds_are_told_apart() -> None:
    axes = (Axis("token", 16), Axis("chan", 8))
    values = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    wishes: list[list[Operation]] = [
        [Stats(("mean",))],
        [Pool("token", 4, Reducer.MAX)],
        [Stats(("p50", "max"))],
        [Stats(("mean",))],
    ]
    reduced = [reduce_shard(values * 2**number, None, axes, wish) for number, wish in enumerate(wishes)]

    together = completed([each for each in reduced if each is not None])

    arrays = together.of([tensor.numpy() for tensor in together.tensors])
    for number, (wish, each, found) in enumerate(zip(wishes, reduced, arrays, strict=True)):
        assert each is not None
        expected = reference.reduce_shard(Values((values * 2**number).float().numpy()), axes, wish)
        assert expected is not None
        _assert_same(each.finish(found), expected)


class NumbersMadeTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A GPU is brought each of them, and the host waits until it has done all before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ == "scalar_tensor"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "operation", [STATISTICS, Hist(8), TopK(3), *(Reduce(how, "chan") for how in Reducer)], ids=str
)
def test_nothing_is_brought_to_the_device_while_it_reduces(
    operation: Operation, hidden: bool, dtype: torch.dtype
) -> None:
    values, axes = torch.ones(4, 8, dtype=dtype), (Axis("token", 4), Axis("chan", 8))
    masked = torch.zeros(4, 8, dtype=torch.bool) if hidden else None

    def reduce() -> Completed:
        reduced = reduce_shard(values, masked, axes, [operation])
        assert reduced is not None
        return completed([reduced])

    reduce()  # tables are made once
    with NumbersMadeTensors() as numbers:
        reduce()

    assert numbers.count == 0


class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of what torch is asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", [Reducer.ABSMAX, Reducer.FARTHEST])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_page_with_room_for_each_cell_costs_no_groups(hidden: bool, how: Reducer) -> None:
    values, axes = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]]), (Axis("query", 2), Axis("key", 3))
    masked = torch.tensor([[False, False, True], [False, False, False]]) if hidden else None
    pools = [Pool("key", 704, how), Pool("query", 704, how)]

    with Names() as names:
        found = reduce_shard(values, masked, axes, pools)

    assert found is not None
    expected = reference.reduce_shard(Values(values.numpy(), None if masked is None else masked.numpy()), axes, pools)
    assert expected is not None
    _assert_same(found.on_host(), expected)
    assert not names.found & {"amax", "aminmax", "sum", "linalg_vector_norm", "scatter_reduce"}


def test_a_new_token_of_a_fused_kernel_sees_all_keys_without_a_mask() -> None:
    random = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 4, 1, 8, generator=random), torch.randn(2, 4, 6, 8, generator=random)
    axes = (Axis("batch", 2), Axis("head", 4), Axis("query", 1), Axis("key", 6))

    with Names() as names:
        found = reduce_attention(query, key, axes, [Take("head", 1)], scale=0.3, softmax=True)

    assert found is not None
    result = found.on_host()
    assert isinstance(result, Values)
    expected = (query[:, 1] @ key[:, 1].transpose(-1, -2) * 0.3).softmax(-1)
    np.testing.assert_allclose(result.array, expected.numpy(), rtol=1e-5)
    assert result.masked is None
    assert "masked_fill" not in names.found


def test_arrays_of_one_copy_are_those_of_their_tensors() -> None:
    tensors = [torch.arange(3.0), torch.tensor([True]), torch.arange(4).view(2, 2), torch.tensor(2.5).double()]
    joined = b"".join(tensor.numpy().tobytes() for tensor in tensors)

    found = split(np.frombuffer(joined, np.uint8), tensors)

    for array, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(array, tensor.numpy(), strict=True)


def _assert_same(found: Result, expected: Result) -> None:
    assert type(found) is type(expected)
    match found, expected:
        case Values(), Values():
            np.testing.assert_array_equal(found.absent, expected.absent)
            np.testing.assert_allclose(found.array, expected.array, rtol=1e-6, atol=1e-30)
        case Partial(), Partial():
            np.testing.assert_allclose(found.components, expected.components, rtol=1e-9, atol=1e-12)
        case Counts(), Counts():
            np.testing.assert_array_equal(found.counts, expected.counts)
        case Top(), Top():
            np.testing.assert_array_equal(found.indexes, expected.indexes)
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, rtol=1e-6)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(Exception, match="this part has"):
        reduce_shard(torch.zeros(3), None, (Axis("token", 4),), [])


def test_a_part_of_which_nothing_is_asked_for_gives_nothing() -> None:
    axes = (Axis("token", 8, (Split(Rule.SEQUENCE, 1, 2),)),)

    assert reduce_shard(torch.zeros(4), None, axes, [Take("token", Slice(0, 2))]) is None


@given(
    st.lists(
        st.sampled_from(
            [Take("batch", 0), Take("head", 1), Take("head", Slice(0, 3)), Take("query", Slice(-3)), Take("query", 2)]
        ),
        max_size=3,
        unique_by=lambda take: take.axis,
    ),
    st.sampled_from([(), (Reduce(Reducer.ENTROPY, "key"),), (Take("key", Slice(0, 5)), Reduce(Reducer.MAX, "head"))]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
)
@settings(max_examples=50, deadline=None)
def test_attention_of_a_fused_kernel_is_that_of_the_plain_softmax(
    takes: list[Operation], then: tuple[Operation, ...], softmax: bool, groups: int
) -> None:
    if any(isinstance(take, Take) and take.axis == "head" and take.pick == 1 for take in takes) and len(then) == 2:
        return  # the heads are gone: a plan refuses it
    random = torch.Generator().manual_seed(1)
    query = torch.randn(2, 4, 6, 8, generator=random)
    key = torch.randn(2, groups, 6, 8, generator=random)
    axes = (Axis("batch", 2), Axis("head", 4), Axis("query", 6), Axis("key", 6))
    whole = query @ key.repeat_interleave(4 // groups, 1).transpose(-1, -2) * 0.3
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    plain = whole.masked_fill(future, -torch.inf).softmax(-1) if softmax else whole

    found = reduce_attention(query, key, axes, [*takes, *then], scale=0.3, softmax=softmax)
    expected = reduce_shard(plain, future.expand(plain.shape), axes, [*takes, *then])

    assert found is not None
    assert expected is not None
    one, other = found.on_host(), expected.on_host()
    assert isinstance(one, Values)
    assert isinstance(other, Values)
    np.testing.assert_array_equal(one.absent, other.absent)
    np.testing.assert_allclose(one.array, other.array, rtol=1e-4, atol=1e-5)
