"""What a step does whose loss or gradients are no numbers, where --nan-policy says other than to stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from megatronapp.core.errors import TrainingError

MOST_IN_A_ROW = 10


class NotFiniteSteps:
    """Counts them in a row; the same on all ranks."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def see(self, *, finite: bool, step: int) -> None:
        """Raises TrainingError on all ranks after too many."""
        self._in_a_row = 0 if finite else self._in_a_row + 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise TrainingError(
                f"loss or gradients were no numbers in {MOST_IN_A_ROW} steps in a row, the last one {step}: "
                "lower --lr, lengthen --lr-warmup-iters or set --clip-grad"
            )


def all_finite(losses: torch.Tensor | None, chunks: Iterable[Any], device: torch.device, *, scaled: bool) -> bool:
    """Whether losses and reduced gradients of all ranks are numbers; all ranks call it. `scaled` gradients may
    overflow: the optimizer sees to them."""
    values = [] if losses is None else [losses]
    if not scaled:
        values += [buffer.grad_data for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    fine = torch.stack([value.isfinite().all() for value in values]).all() if values else torch.tensor(True)
    flag = fine.to(device=device, dtype=torch.int32)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)
