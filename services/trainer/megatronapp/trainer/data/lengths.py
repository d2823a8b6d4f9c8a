"""Microbatches that are as long as their longest sequence (--variable-seq-lengths)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.data.sampler import Collate


@dataclass(frozen=True)
class Cut:
    """Cuts a microbatch behind the last token for which `counts`, one of its tensors, is not 0 in some row."""

    counts: str
    multiple: int
    """Of the length that is left: what ranks share it in."""

    @classmethod
    def of(cls, parallel: ParallelConfig, counts: str) -> Self:
        context = parallel.context_parallel_size
        pieces = 2 * context if context > 1 else 1
        return cls(counts, pieces * (parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1))

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        counted = batch[self.counts]
        rows, whole = counted.shape
        columns = counted.ne(0).any(0).nonzero()
        longest = int(columns[-1]) + 1 if len(columns) else 1
        length = min(whole, -(-longest // self.multiple) * self.multiple)
        cut = {
            name: value[:, :length].contiguous()
            for name, value in batch.items()
            if isinstance(value, torch.Tensor) and value.shape == counted.shape
        }
        return {**batch, **cut, "work": (rows * length, rows * length * length), "real_tokens": _real_tokens(counted)}


def _real_tokens(counted: torch.Tensor) -> int:
    """Of all rows [rows, tokens], each up to the last that is not 0."""
    places = torch.arange(1, counted.shape[1] + 1, device=counted.device)
    return int((counted.ne(0) * places).amax(1).sum())


@dataclass(frozen=True)
class CutCollate:
    """A family's `collate` whose microbatches are cut."""

    collate: Collate
    cut: Cut

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        return self.cut(self.collate(samples))
