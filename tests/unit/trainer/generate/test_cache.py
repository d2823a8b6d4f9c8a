"""Which positions a token may see over a filled cache, and what is taken over from one cache into another."""

from __future__ import annotations

import pytest
import torch

from megatronapp.trainer.generate.cache import Cache, mask

CPU = torch.device("cpu")


@pytest.mark.parametrize(("start", "end"), [(0, 5), (0, 1), (4, 5)])
def test_core_masks_by_itself_where_it_can(start: int, end: int) -> None:
    assert mask(start, end, CPU) is None


def test_several_tokens_over_a_cache_see_it_all_and_nothing_later() -> None:
    found = mask(2, 5, CPU)

    assert found is not None
    assert found.shape == (1, 1, 3, 5)
    assert found[0, 0].int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]


def test_rows_are_taken_over_in_any_order_and_several_times() -> None:
    cache = Cache(rows=2, positions=4)
    keys = torch.arange(8.0).reshape(4, 2, 1, 1)
    cache.context.key_value_memory_dict[7] = (keys, -keys)
    cache.advance(3)

    taken = cache.head([1, 0, 1], length=2, positions=6)

    assert (taken.rows, taken.positions, taken.at) == (3, 6, 2)
    fresh, values = taken.context.key_value_memory_dict[7]
    assert fresh.shape == (6, 3, 1, 1)
    assert fresh[:2, :, 0, 0].tolist() == [[1, 0, 1], [3, 2, 3]]
    assert torch.equal(values[:2], -fresh[:2])
    assert cache.select([0]).at == 3
