"""Which rank reads which samples. The order is a function of the samples consumed, so a restart goes on exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch.utils.data import DataLoader, Sampler

from megatronapp.core.errors import UsageError

Collate = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Samples to a microbatch."""


class Microbatch(TypedDict):
    """One microbatch of a GPT; tensors are [micro_batch_size, sequence_length], int64, `loss_mask` float32."""

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    work: tuple[int, int]
    """Tokens, and the sum of the squared lengths of the sequences: what compute time depends on."""


class _MicrobatchSampler(Sampler[list[int]]):
    """Cuts the global order of samples into a rank's microbatches.

    Of each `micro_batch_size * data_parallel_size` samples in a row the rank takes its own part, as Megatron-LM does.
    """

    def __init__(
        self,
        *,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
    ) -> None:
        if total_samples < 1:
            raise UsageError("the dataset has no samples")
        if not 0 <= data_parallel_rank < data_parallel_size:
            raise ValueError(f"data-parallel rank {data_parallel_rank} of {data_parallel_size}")
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self.step = micro_batch_size * data_parallel_size
        self.mine = slice(data_parallel_rank * micro_batch_size, (data_parallel_rank + 1) * micro_batch_size)


class SequentialSampler(_MicrobatchSampler):
    """Samples in the dataset's order (which GPTDataset shuffles itself), once; an incomplete last batch is left out."""

    def __len__(self) -> int:
        return max(self.total_samples - self.consumed_samples, 0) // self.step

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(self.consumed_samples, self.total_samples - self.step + 1, self.step):
            yield list(range(start, start + self.step))[self.mine]


class CyclicSampler(_MicrobatchSampler):
    """Epoch after epoch without end, each in an order of its own drawn from `seed`."""

    def __init__(self, *, seed: int, **options: int) -> None:
        super().__init__(**options)
        self.seed = seed
        if self.total_samples < self.step:
            raise UsageError(f"the dataset has {self.total_samples} samples, less than one batch of {self.step}")

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.total_samples // self.step
        epoch, batch = divmod(self.consumed_samples // self.step, batches)
        while True:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(self.total_samples, generator=generator).tolist()
            for start in range(batch * self.step, batches * self.step, self.step):
                yield order[start : start + self.step][self.mine]
            epoch, batch = epoch + 1, 0


def microbatches(
    dataset: Any,
    sampler: Sampler[list[int]],
    collate: Collate,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """The rank's microbatches in the sampler's order, loaded by `num_workers` processes (0: this one)."""
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        persistent_workers=num_workers > 0,
    )
    return iter(loader)


def collate(samples: Sequence[dict[str, torch.Tensor]]) -> Microbatch:
    """Samples, each of tensors [sequence_length], to one microbatch.

    A sample is one sequence of work, whatever documents are in it: attention crosses their borders, where
    DocumentCollate does not say otherwise.
    """
    stack: Callable[[str], torch.Tensor] = lambda key: torch.stack([sample[key] for sample in samples])  # noqa: E731
    tokens = stack("tokens")
    batch, length = tokens.shape
    return Microbatch(
        tokens=tokens,
        labels=stack("labels"),
        loss_mask=stack("loss_mask"),
        position_ids=stack("position_ids"),
        work=(batch * length, batch * length * length),
    )


@dataclass(frozen=True)
class DocumentCollate:
    """A `collate` of rows whose documents don't see each other: each is a sequence of work. Their positions start at 0,
    those of a row too."""

    collate: Collate

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        batch = self.collate(samples)
        positions = batch["position_ids"].flatten()
        starts = positions.eq(0).nonzero().flatten()
        lengths = torch.diff(starts, append=torch.tensor([len(positions)]))
        return {**batch, "work": (len(positions), int(lengths.square().sum()))}
