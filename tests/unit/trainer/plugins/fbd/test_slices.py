"""A sequence between tensor ranks that hold it otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.plugins.fbd.slices import Sequence, nearest, slices

sizes = st.sampled_from([1, 2, 3, 4, 6])


@given(sizes, sizes, st.booleans(), st.booleans())
def test_every_receiver_gets_each_of_its_tokens_once(forward: int, backward: int, split: bool, wanted: bool) -> None:
    ours = Sequence(tokens=24, tensor=forward, split=split)
    theirs = Sequence(tokens=24, tensor=backward, split=wanted)

    for receiver in range(backward):
        begin = receiver * (24 // backward) if wanted else 0
        filled: dict[int, int] = {}
        for piece in slices(ours, theirs, receiver):
            first = piece.sender * (24 // forward) if split else 0
            for offset in range(piece.length):
                assert piece.target + offset not in filled
                filled[piece.target + offset] = first + piece.source + offset
        assert filled == {place: begin + place for place in range(24 // backward if wanted else 24)}


def test_ranks_that_hold_the_same_serve_equally_many() -> None:
    assert [nearest(rank, 4, 2) for rank in range(4)] == [0, 0, 1, 1]
    assert [nearest(rank, 2, 4) for rank in range(2)] == [0, 2]
