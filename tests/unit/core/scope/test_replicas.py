"""Data-parallel replicas apart: each one's picture is that of its own values alone."""

import numpy as np
import pytest

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.plan import Plan, PlanError, plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import reduce_shard
from megatronapp.core.scope.replicas import difference
from megatronapp.core.scope.results import Result
from megatronapp.core.scope.sites import Axis, Rule, Split
from megatronapp.core.scope.stitch import Piece, needed, place_of, stitch

REPLICAS, TENSORS = 2, 2
VALUES = np.random.default_rng(5).normal(size=(4, 6, 8)).astype(np.float32)
"""Two rows of each replica, channels over two tensor ranks."""


def axes_of(replica: int, tensor: int) -> tuple[Axis, ...]:
    rows = Axis("batch", 4, (Split(Rule.DATA, replica, REPLICAS),))
    return rows, Axis("token", 6), Axis("chan", 8, (Split(Rule.TENSOR, tensor, TENSORS),))


def planned(operations: str, axes: tuple[Axis, ...] | None = None, replicas: int = REPLICAS, site: str = "q") -> Plan:
    return plan(parse(f"{site} | {operations}"), site, axes or axes_of(0, 0), replicas=replicas)


def shards_of(made: Plan, replicas: range = range(REPLICAS)) -> dict[Piece, Result]:
    shards = {}
    for replica in replicas:
        for tensor in range(TENSORS):
            axes = axes_of(replica, tensor)
            held = Values(VALUES[2 * replica : 2 * replica + 2, :, 4 * tensor : 4 * tensor + 4])
            place, reduced = place_of(made, axes, replica), reduce_shard(held, axes, made.rank, partial=made.partial)
            assert place is not None
            assert reduced is not None
            shards[place] = reduced
    return shards


def whole_of(replica: int, operations: str) -> np.ndarray:
    axes = (Axis("batch", 2), Axis("token", 6), Axis("chan", 8))
    result = reduce_shard(Values(VALUES[2 * replica : 2 * replica + 2]), axes, parse(f"q | {operations}").operations)
    assert isinstance(result, Values)
    return result.array


@pytest.mark.parametrize(
    "operations",
    [
        "stats(mean,std,absmax,p50,nonfinite)",
        "stats(l2,over=chan)",
        "mean(batch) | max(chan)",
        "token(0:4) | mean(batch)",
        "abs",
    ],
)
def test_each_replica_is_what_it_is_alone(operations: str) -> None:
    made = planned(f"{operations} | replicas")
    shards = shards_of(made)

    result, missing = stitch(made, shards)

    assert isinstance(result, Values)
    assert shards.keys() == needed(made)
    assert (made.axes[0], made.sizes, missing) == ("replica", result.array.shape, 0)
    expected = np.stack([whole_of(replica, operations) for replica in range(REPLICAS)])
    np.testing.assert_allclose(result.array, expected, rtol=1e-6, atol=1e-6)


def test_what_each_replica_holds_alike_is_asked_of_each() -> None:
    weight = (Axis("out", 8, (Split(Rule.TENSOR, 1, TENSORS),)), Axis("in", 6))
    made = planned("stats(l2) | replicas", weight, site="weight.a")

    assert [place_of(made, weight, replica) for replica in range(REPLICAS)] == [(0, 1, 0), (1, 1, 0)]
    assert len(needed(made)) == REPLICAS * TENSORS


def test_a_replica_that_did_not_come_is_missing_and_the_other_is_shown() -> None:
    made = planned("stats(mean,std) | replicas")

    result, missing = stitch(made, shards_of(made, range(1, 2)))

    assert isinstance(result, Values)
    assert missing == TENSORS
    assert result.missing is not None
    assert result.missing.all(1).tolist() == [True, False]
    np.testing.assert_allclose(result.array[1], whole_of(1, "stats(mean,std)"), rtol=1e-6)


SHARED = (Axis("out", 8), Axis("shard", 2, (Split(Rule.DATA, 0, 2),)))
EXPERTS = (Axis("expert", 4, (Split(Rule.EXPERT, 0, 2),)), Axis("chan", 8))


@pytest.mark.parametrize(
    ("operations", "axes", "replicas", "hint"),
    [
        ("stats(mean) | replicas", None, 1, "one data-parallel replica alone"),
        ("batch(0) | replicas", None, 2, "reduce it"),
        ("hist(8,asinh) | replicas", None, 2, "can't follow hist"),
        ("topk(3) | replicas", None, 2, "can't follow topk"),
        ("pca(2) | replicas", None, 2, "can't follow pca"),
        ("replicas | mean(chan)", None, 2, "replicas comes last"),
        ("replicas | diff(clean)", None, 2, "replicas comes last"),
        ("replicas | replicas", None, 2, "can't follow replicas"),
        ("stats(mean) | replicas", SHARED, 2, "a part of q of its own"),
        ("stats(mean) | replicas", EXPERTS, 2, "different experts"),
    ],
)
def test_replicas_that_can_not_be_told_apart_are_refused(
    operations: str, axes: tuple[Axis, ...] | None, replicas: int, hint: str
) -> None:
    with pytest.raises(PlanError, match=hint):
        planned(operations, axes, replicas)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1, 2], [1, 2]], ""),
        ([[1, 2], [1, 3]], "replicas 0, 1 hold different values"),
        ([[1, 2], [1, 3], [1, 2]], "replica 1 holds other values than the 2 that agree"),
        ([[0.0, np.nan], [-0.0, np.nan]], ""),
    ],
)
def test_replicas_that_hold_something_else_are_named(rows: list[list[float]], said: str) -> None:
    assert difference(Values(np.array(rows, np.float32))) == said


def test_a_replica_that_has_not_come_is_not_named() -> None:
    missing = np.array([[False], [True]])

    assert difference(Values(np.array([[1], [np.nan]], np.float32), missing=missing)) == ""
