from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.trainer.data.sampler import CyclicSampler, DocumentCollate, SequentialSampler, collate

layouts = st.fixed_dictionaries(
    {
        "micro_batch_size": st.integers(1, 4),
        "data_parallel_size": st.integers(1, 4),
        "total_samples": st.integers(1, 60),
    }
)


def read(layout: dict[str, int], consumed: int, count: int | None = None, **options: int) -> list[list[list[int]]]:
    """What each data-parallel rank reads, microbatch by microbatch."""
    kind = CyclicSampler if options else SequentialSampler
    return [
        list(islice(kind(data_parallel_rank=rank, consumed_samples=consumed, **layout, **options), count))
        for rank in range(layout["data_parallel_size"])
    ]


@given(layouts)
def test_every_sample_of_the_whole_batches_is_read_once(layout: dict[str, int]) -> None:
    step = layout["micro_batch_size"] * layout["data_parallel_size"]

    ranks = read(layout, 0)

    samples = sorted(sample for rank in ranks for microbatch in rank for sample in microbatch)
    assert samples == list(range(layout["total_samples"] // step * step))


@given(layouts, st.integers(0, 5))
def test_a_restart_goes_on_where_it_stopped(layout: dict[str, int], batches: int) -> None:
    consumed = batches * layout["micro_batch_size"] * layout["data_parallel_size"]

    assert read(layout, consumed) == [rank[batches:] for rank in read(layout, 0)]


@given(layouts, st.integers(0, 20), st.integers(0, 3))
def test_cyclic_order_goes_on_over_epochs_and_restarts(layout: dict[str, int], batches: int, seed: int) -> None:
    step = layout["micro_batch_size"] * layout["data_parallel_size"]
    if layout["total_samples"] < step:
        with pytest.raises(UsageError, match="less than one batch"):
            read(layout, 0, 1, seed=seed)
        return

    whole = read(layout, 0, batches + 5, seed=seed)

    assert read(layout, batches * step, 5, seed=seed) == [rank[batches:] for rank in whole]


def test_epochs_have_orders_of_their_own() -> None:
    layout = {"micro_batch_size": 8, "data_parallel_size": 1, "total_samples": 8}

    first, second = read(layout, 0, 2, seed=1)[0]

    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_a_microbatch_carries_its_work() -> None:
    sample = {key: torch.arange(1, 5) for key in ("tokens", "labels", "loss_mask", "position_ids")}

    microbatch = collate([sample, sample])

    assert microbatch["tokens"].shape == (2, 4)
    assert microbatch["work"] == (8, 32)


def test_documents_that_do_not_see_each_other_are_work_of_their_own() -> None:
    positions = [torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 0, 1])]
    samples = [dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"), each) for each in positions]

    microbatch = DocumentCollate(collate)(samples)

    assert microbatch["work"] == (8, 9 + 1 + 4 + 4)
