"""torchrun's ranks as forward and backward ranks of replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.trainer.plugins.fbd.roles import Grid, Place, Role, Roles

grids = st.builds(Grid, tensor=st.integers(1, 4), pipeline=st.integers(1, 4), context=st.just(1))


@given(grids, grids, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_every_rank_has_one_place_and_a_role_is_counted_as_megatron_core_counts(
    forward: Grid, backward: Grid, replicas: int, context: int, apart: bool
) -> None:
    forward, backward = (Grid(tensor=g.tensor, pipeline=g.pipeline, context=context) for g in (forward, backward))
    size = forward.ranks + backward.ranks

    roles = Roles.of(size * replicas, forward, backward, apart=apart)

    assert sorted(roles.ranks(Role.FORWARD) + roles.ranks(Role.BACKWARD)) == list(range(size * replicas))
    for rank in range(size * replicas):
        place = roles.place(rank)
        assert roles.rank(place) == rank
        assert apart or place.replica == rank // size
        ours = roles.grid(place.role)
        inner = ((place.stage * replicas + place.replica) * context + place.context) * ours.tensor + place.tensor
        assert roles.ranks(place.role)[inner] == rank


def test_a_forward_stage_lies_beside_the_backward_stage_of_the_same_layers() -> None:
    roles = Roles.of(6, Grid(tensor=1, pipeline=2), Grid(tensor=2, pipeline=2))

    assert [(roles.place(rank).role, roles.place(rank).stage) for rank in range(6)] == [
        (Role.FORWARD, 0), (Role.BACKWARD, 0), (Role.BACKWARD, 0),
        (Role.FORWARD, 1), (Role.BACKWARD, 1), (Role.BACKWARD, 1),
    ]  # fmt: skip


def test_roles_that_lie_apart_have_their_own_ranks_backward_first() -> None:
    roles = Roles.of(6, Grid(tensor=1, pipeline=1), Grid(tensor=1, pipeline=2), apart=True)

    assert [(roles.place(rank).role, roles.place(rank).replica, roles.place(rank).stage) for rank in range(6)] == [
        (Role.BACKWARD, 0, 0), (Role.BACKWARD, 0, 1), (Role.BACKWARD, 1, 0), (Role.BACKWARD, 1, 1),
        (Role.FORWARD, 0, 0), (Role.FORWARD, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "forward", "said"),
    [
        (12, Grid(tensor=2, pipeline=2), "an odd number: start 8 or 16 ranks"),
        (4, Grid(tensor=2, pipeline=2), "start 8 ranks"),
        (10, Grid(tensor=2, pipeline=2), "4 forward and 4 backward ranks: start 8 or 16 ranks"),
        (8, Grid(tensor=1, pipeline=2), "replicas of 2 forward and 4 backward ranks: start 6 or 12 ranks"),
        (5, Grid(tensor=1, pipeline=2), "start 6 ranks"),
    ],
)
def test_other_numbers_of_ranks_are_refused_with_the_right_ones(ranks: int, forward: Grid, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        Roles.of(ranks, forward, Grid(tensor=2, pipeline=2))
    assert "\n" not in str(raised.value)


@given(grids, grids, st.integers(1, 100))
def test_all_others_are_refused_with_the_nearest_that_start(forward: Grid, backward: Grid, ranks: int) -> None:
    size = forward.ranks + backward.ranks
    fitting = [number for number in (ranks - ranks % size, ranks - ranks % size + size) if number]

    refusal = ""
    try:
        Roles.of(ranks, forward, backward)
    except UsageError as error:
        refusal = str(error)

    assert bool(refusal) is (ranks % size > 0)
    assert not refusal or refusal.endswith(f"start {' or '.join(map(str, fitting))} ranks")


def test_a_place_reads_as_people_say_it() -> None:
    assert str(Place(Role.FORWARD, 1, 0, 0, 2)) == "forward, stage 1, tensor rank 2, replica 0"
