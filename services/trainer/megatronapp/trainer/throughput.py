"""How many tokens and floating-point operations the steps of a line of the log were.

With --variable-seq-lengths microbatches differ: what is padding in them is no token, and computing takes what is left
of them. Only the ranks that know the loss read all microbatches to their end, so only they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from megatronapp.trainer.config import TrainingConfig


class CountedMicrobatches:
    """An iterator over cut microbatches that adds up what they are."""

    def __init__(self, microbatches: Iterator[Mapping[str, Any]]) -> None:
        self._microbatches = microbatches
        self._counted = [0, 0, 0]

    def __iter__(self) -> CountedMicrobatches:
        return self

    def __next__(self) -> Mapping[str, Any]:
        batch = next(self._microbatches)
        for index, number in enumerate((batch["real_tokens"], *batch["work"])):
            self._counted[index] += number
        return batch

    def take(self, device: torch.device) -> torch.Tensor:
        """[tokens that are no padding, tokens, sum of the squared lengths], float64, of all data ranks' microbatches
        since the last call, which these ranks make together."""
        counted = torch.tensor(self._counted, dtype=torch.float64, device=device)
        self._counted = [0, 0, 0]
        dist.all_reduce(counted, group=parallel_state.get_data_parallel_group())
        return counted


class Throughput:
    """`flops_of`: of one sequence of a length, without a constant part: what grows with it, and with its square."""

    def __init__(self, training: TrainingConfig, flops_of: Callable[[int], float]) -> None:
        self._length, self._varies = training.seq_length, training.variable_seq_lengths
        self._of_whole, self._of_one, of_two = flops_of(training.seq_length), flops_of(1), flops_of(2)
        self._of_square = (of_two - 2 * self._of_one) / 2

    def of(self, samples: int, counted: torch.Tensor | None) -> tuple[float | None, float | None]:
        """(tokens, floating-point operations) of so many sequences; None where this rank does not know."""
        if not self._varies:
            return samples * self._length, samples * self._of_whole
        if counted is None:
            return None, None
        real, tokens, squares = counted.tolist()
        return real, (self._of_one - self._of_square) * tokens + self._of_square * squares
