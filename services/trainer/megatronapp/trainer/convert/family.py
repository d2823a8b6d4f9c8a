"""What a family of models is to the converter: its flags of the trainer, its config.json, and its weights' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.sizes import ffn_hidden_size

Tensors = Sequence[torch.Tensor]
LAYERS, ENCODER_LAYERS = "decoder.layers.", "encoder.layers."
"""Begin the keys of tensors that a checkpoint stacks over all layers, the layer being the first axis."""


def _single(tensors: Tensors) -> torch.Tensor:
    return tensors[0]


def _alone(tensor: torch.Tensor) -> Tensors:
    return (tensor,)


@dataclass(frozen=True)
class Weight:
    """A tensor of the trainer's checkpoint, of one layer where it is stacked, and the tensors of Hugging Face that it
    is made of. `shape` is without the axis of layers; `sources`: names and shapes; `also`: keys under which the
    checkpoint has the same tensor once more."""

    key: str
    layer: int | None
    shape: tuple[int, ...]
    sources: Mapping[str, tuple[int, ...]]
    join: Callable[[Tensors], torch.Tensor] = _single
    split: Callable[[torch.Tensor], Tensors] = _alone
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """`width` of one head; `rows` of the embedding; `positions` that are learned, else 0."""

    layers: int
    hidden: int
    heads: int
    groups: int
    width: int
    ffn: int
    rows: int
    positions: int

    @classmethod
    def of(cls, model: ModelConfig, rows: int, sequence: int) -> Sizes:
        heads = model.num_attention_heads
        learned = model.position_embedding_type == "learned_absolute"
        return cls(
            layers=model.num_layers,
            hidden=model.hidden_size,
            heads=heads,
            groups=model.num_query_groups if model.group_query_attention else heads,
            width=model.kv_channels or model.hidden_size // heads,
            ffn=ffn_hidden_size(model),
            rows=rows,
            positions=(model.max_position_embeddings or sequence) if learned else 0,
        )


class Family(Protocol):
    @property
    def name(self) -> str:
        """Hugging Face's model_type."""
        ...

    @property
    def passed_over(self) -> re.Pattern[str]:
        """Names of tensors in older files that are no weights."""
        ...

    @property
    def tied(self) -> frozenset[str]:
        """Names of tensors that files may hold though they are other ones' copies in a tied model."""
        ...

    @property
    def prefix(self) -> str:
        """Begins the names of all tensors but those of the head."""
        ...

    def matches(self, model: ModelConfig) -> bool:
        """Whether a model of these settings can be written as one of this family."""
        ...

    def flags(self, config: Fields) -> list[str]:
        """The trainer's. Raises DataError that names the field that the trainer can't express."""
        ...

    def config(self, trainer: TrainerConfig, sizes: Sizes) -> dict[str, Any]:
        """config.json of a model of these settings."""
        ...

    def weights(self, model: ModelConfig, sizes: Sizes) -> Iterator[Weight]:
        """All of them, layer by layer."""
        ...


def plain(key: str, source: str, shape: tuple[int, ...], layer: int | None = None) -> Weight:
    """The same on both sides."""
    return Weight(key, layer, shape, {source: shape})


def affine(key: str, source: str, shape: tuple[int, ...], layer: int | None = None) -> Iterator[Weight]:
    """A weight of that shape and the bias of its first axis. `key`, `source`: up to there."""
    yield plain(f"{key}weight", f"{source}weight", shape, layer)
    yield plain(f"{key}bias", f"{source}bias", shape[:1], layer)


def qkv(key: str, layer: int, sources: Sequence[str], rest: tuple[int, ...], sizes: Sizes) -> Weight:
    """Queries, keys and values, or keys and values, which are tensors of their own there. `rest`: the other axes."""
    heads = (sizes.heads, sizes.groups, sizes.groups)[-len(sources) :]
    lengths = [each * sizes.width for each in heads]
    return Weight(
        key=key,
        layer=layer,
        shape=(sum(lengths), *rest),
        sources={source: (length, *rest) for source, length in zip(sources, lengths, strict=True)},
        join=join_qkv(sizes),
        split=split_qkv(sizes, with_queries=len(sources) == len("qkv")),
    )


def gated(key: str, layer: int, sources: Sequence[str], rest: tuple[int, ...], sizes: Sizes) -> Weight:
    """The MLP's two first layers, of which the first is activated."""
    return Weight(
        key=key,
        layer=layer,
        shape=(2 * sizes.ffn, *rest),
        sources=dict.fromkeys(sources, (sizes.ffn, *rest)),
        join=lambda tensors: torch.cat(list(tensors)),
        split=lambda tensor: tensor.chunk(2),
    )


def join_qkv(sizes: Sizes) -> Callable[[Tensors], torch.Tensor]:
    """Queries, keys and values as megatron-core has them: group by group, its queries, then its key and its value."""

    def join(tensors: Tensors) -> torch.Tensor:
        rest = tensors[0].shape[1:]
        parts = [tensor.reshape(sizes.groups, -1, *rest) for tensor in tensors]
        return torch.cat(parts, 1).reshape(-1, *rest)

    return join


def split_qkv(sizes: Sizes, *, with_queries: bool = True) -> Callable[[torch.Tensor], Tensors]:
    queries = [sizes.heads // sizes.groups * sizes.width] if with_queries else []

    def split(tensor: torch.Tensor) -> Tensors:
        rest = tensor.shape[1:]
        grouped = tensor.reshape(sizes.groups, -1, *rest)
        return [part.reshape(-1, *rest) for part in grouped.split([*queries, sizes.width, sizes.width], 1)]

    return split
