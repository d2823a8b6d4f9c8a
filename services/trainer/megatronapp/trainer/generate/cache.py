"""Keys and values of what was computed: megatron-core's static context, and what it can't do alone.

All rows of a context are at the same position. core masks a forward pass from position 0 by itself and one of a single
token not at all; several tokens over a filled cache need an explicit mask, without which core's own attention fails and
Transformer Engine's sees the future. Transformer Engine takes no such mask here: it is fed token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.inference.contexts import StaticInferenceContext


class Cache:
    """Of `rows` rows, up to `positions` long. `at` positions are filled. Each rank holds those of its own layers."""

    def __init__(self, rows: int, positions: int) -> None:
        self.rows = rows
        self.positions = positions
        self.context = StaticInferenceContext(rows, positions)

    @property
    def at(self) -> int:
        return int(self.context.sequence_len_offset)

    def advance(self, count: int) -> None:
        self.context.sequence_len_offset += count

    def select(self, rows: Sequence[int]) -> Cache:
        """Another cache with these rows of this one, in this order; a row may be taken several times or not at all."""
        return self.head(rows, self.at, self.positions)

    def head(self, rows: Sequence[int], length: int, positions: int) -> Cache:
        """The first `length` positions of these rows, in a cache of `positions`."""
        selected = Cache(len(rows), positions)
        memory: dict[int, Any] = self.context.key_value_memory_dict
        for layer, (keys, values) in memory.items():
            selected.context.key_value_memory_dict[layer] = tuple(
                _head(tensor, rows, length, positions) for tensor in (keys, values)
            )
        selected.advance(length)
        return selected


def _head(tensor: torch.Tensor, rows: Sequence[int], length: int, positions: int) -> torch.Tensor:
    """Of keys or values [positions, rows, groups, width]."""
    index = torch.tensor(rows, device=tensor.device)
    fresh = tensor.new_empty(positions, len(rows), *tensor.shape[2:])
    fresh[:length] = tensor[:length].index_select(1, index)
    return fresh


def mask(start: int, end: int, device: torch.device) -> torch.Tensor | None:
    """For the tokens at positions `start` to `end` over a cache filled up to `start`, [1, 1, end - start, end]: true
    where a position must not be seen. None where core needs none."""
    count = end - start
    if start == 0 or count == 1:
        return None
    return torch.ones(count, end, dtype=torch.bool, device=device).triu(start + 1)[None, None]


def takes_masks(chunks: Sequence[torch.nn.Module]) -> bool:
    """Whether the model's attention applies a mask that it is given over a filled cache."""
    modules = (module for chunk in chunks for name, module in chunk.named_modules() if name.endswith("core_attention"))
    return all("transformer_engine" not in type(module).__module__ for module in modules)
