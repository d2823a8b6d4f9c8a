"""A rank's weights by the names that they have in the whole model, and which part of each is this rank's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatronapp.trainer.initialize import GATED, tensor_ranks, whole_name

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_ROW_BITS = 32


@dataclass(frozen=True, slots=True)
class Weight:
    name: str
    """Of the whole model: `layers.3.self_attention.linear_qkv.weight`. The last stage's copy of tied embeddings bears
    the embedding's."""
    layer: int | None
    """Global, from 0."""
    parameter: torch.nn.Parameter
    gated: bool
    """Its rows are those of the gate, then those of the linear half, of this rank each."""

    @property
    def short(self) -> str:
        """Without its layer."""
        match = _LAYER.fullmatch(self.name)
        return match[2] if match else self.name

    def rows(self) -> torch.Tensor:
        """Global numbers of the entries along the first dimension, int64."""
        count = self.parameter.shape[0]
        at = torch.arange(count, device=self.parameter.device)
        part, parts = self.split(0)
        if not self.gated:
            return at + part * count
        half = count // 2
        return at % half + part * half + at // half * half * parts

    def places(self) -> torch.Tensor:
        """A number for each element, int64, of a shape that broadcasts against the weight: the same in any layout."""
        rows = self.rows() << _ROW_BITS
        if self.parameter.dim() == 1:
            return rows
        columns = self.parameter.shape[-1]
        first = self.split(self.parameter.dim() - 1)[0] * columns
        along = torch.arange(first, first + columns, device=rows.device)
        return rows.view(-1, *[1] * (self.parameter.dim() - 1)) + along

    def split(self, dim: int) -> tuple[int, int]:
        """(this rank's part, of how many) along a dimension."""
        split = getattr(self.parameter, "tensor_model_parallel", False)
        return tensor_ranks(self.name) if split and getattr(self.parameter, "partition_dim", 0) == dim else (0, 1)


def weights(chunks: Sequence[torch.nn.Module]) -> Iterator[Weight]:
    """All of this rank's."""
    for chunk in chunks:
        config: Any = chunk.config
        for name, parameter in chunk.named_parameters():
            whole = whole_name(name, chunk, config).removeprefix("decoder.")
            match = _LAYER.fullmatch(whole)
            gated = bool(config.gated_linear_unit) and whole.endswith((f"{GATED}weight", f"{GATED}bias"))
            yield Weight(whole, int(match[1]) if match else None, parameter, gated)
