"""What one tensor split holds of a parameter, put together from the parts of another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.sharding import Shard, pieces


def held(whole: np.ndarray, shard: Shard) -> np.ndarray:
    return np.concatenate([whole[start : start + length] for _, start, length in shard.spans()])


@given(st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 3))
def test_each_rank_of_one_split_is_filled_by_the_ranks_of_the_other(blocks: int, size: int, other: int, n: int) -> None:
    whole = np.arange(blocks * 12 * n)
    shards = [Shard(length=len(whole) // size, blocks=blocks, rank=rank, size=size) for rank in range(size)]

    for rank in range(other):
        target = shards[0].resized(other, rank)
        filled = np.full(target.length, -1)
        for source in shards:
            for piece in pieces(source, target):
                rows = held(whole, source)[piece.source : piece.source + piece.length]
                assert (filled[piece.target : piece.target + piece.length] == -1).all()  # nothing comes twice
                filled[piece.target : piece.target + piece.length] = rows
        assert (filled == held(whole, target)).all()


def test_equal_splits_exchange_whole_shards_with_their_like() -> None:
    first, second = (Shard(length=8, blocks=2, rank=rank, size=2) for rank in range(2))

    assert pieces(first, second) == []
    assert sum(piece.length for piece in pieces(first, first)) == 8


def test_a_gated_matrix_is_split_block_by_block() -> None:
    shard = Shard(length=4, blocks=2, rank=1, size=2)

    assert list(shard.spans()) == [(0, 2, 2), (2, 6, 2)]


def test_blocks_that_cannot_be_dealt_out_are_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks of 3 can't be split over 2 ranks"):
        Shard(length=6, blocks=2).resized(2, 0)
