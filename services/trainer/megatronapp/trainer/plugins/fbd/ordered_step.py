"""The optimizer's step in pieces, in the order of the weights' first use, so that each can be on its way while the
next is stepped: a layer, or a bucket that data-parallel ranks gather.

What torch's Adam and SGD make of a weight depends on no other one: pieces make what the whole would, bit for bit. Other
optimizers step as a whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import (
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
    MixedPrecisionOptimizer,
)

from megatronapp.trainer.optimizer_parts import parts_of
from megatronapp.trainer.patches import Patches

Final = Callable[[Iterable[torch.Tensor]], Any]
BY_WEIGHT = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
COPIES: Mapping[type, tuple[tuple[str, str], ...]] = {
    FP32Optimizer: (),
    Float16OptimizerWithFloat16Params: (("float16_groups", "fp32_from_float16_groups"),),
    DistributedOptimizer: (
        ("model_float16_groups", "shard_fp32_from_float16_groups"),
        ("model_fp32_groups", "shard_fp32_groups"),
    ),
}
"""Where each keeps weights, and what it steps in their place."""


class Piece(NamedTuple):
    weights: list[torch.Tensor]
    lists: dict[str, list[list[torch.Tensor]]]
    """What the optimizer's own lists hold of them, and of what it steps in their place; by parameter group."""
    stepped: list[list[torch.Tensor]]
    gather: Callable[[], Any] | None
    """Brings what other data-parallel ranks have stepped."""


def step_in_order(optimizer: Any, layer_of: Callable[[torch.Tensor], int | None], final: Final) -> None:
    """From now on `final` is told of each piece's weights as soon as they are; on a GPU, as soon as the current stream
    holds the work that makes them so. layer_of: by first use; None for weights that nobody waits for."""
    for part in parts_of(optimizer):
        if type(part) in COPIES and type(part.optimizer) in BY_WEIGHT and not part.is_stub_optimizer:
            part.step_with_ready_grads = partial(_step, part, _pieces(part, layer_of), final)


def _step(part: Any, pieces: list[Piece], final: Final) -> bool:
    whole = FP32Optimizer if isinstance(part, FP32Optimizer) else MixedPrecisionOptimizer
    done = True
    for piece in pieces:
        with _only(part, piece):
            done &= whole.step_with_ready_grads(part)
        if piece.gather is not None:
            piece.gather()
        final(piece.weights)
    return done


@contextmanager
def _only(part: Any, piece: Piece) -> Iterator[None]:
    """In which the optimizer knows of this piece alone."""
    patches = Patches()
    for name, lists in piece.lists.items():
        patches.set(part, name, lists)
    groups = zip(part.optimizer.param_groups, piece.stepped, strict=True)  # others than before, after a load
    patches.set(part.optimizer, "param_groups", [{**group, "params": some} for group, some in groups if some])
    try:
        yield
    finally:
        patches.restore()


def _pieces(part: Any, layer_of: Callable[[torch.Tensor], int | None]) -> list[Piece]:
    def place(weights: Iterable[torch.Tensor]) -> float:
        return min((layer for weight in weights if (layer := layer_of(weight)) is not None), default=math.inf)

    buckets = _buckets(part) if isinstance(part, DistributedOptimizer) else _layers(part, place)
    return [_piece(part, weights, gather) for weights, gather in sorted(buckets, key=lambda bucket: place(bucket[0]))]


def _piece(part: Any, weights: list[torch.Tensor], gather: Callable[[], Any] | None) -> Piece:
    some = set(weights)
    stepped = some | {copy for weight, copy in _copies(part) if weight in some}
    lists = {
        name: [[each for each in group if each in kept] for group in getattr(part, name)]
        for names in COPIES[type(part)]
        for name, kept in zip(names, (some, stepped), strict=True)
    }
    groups = part.optimizer.param_groups
    return Piece(weights, lists, [[each for each in group["params"] if each in stepped] for group in groups], gather)


def _buckets(part: Any) -> list[tuple[list[torch.Tensor], Callable[[], Any] | None]]:
    groups = {
        id(group): group
        for chunk in part.model_chunks
        for buffer in part.buffers
        for weight in buffer.params
        if (group := chunk.param_to_bucket_group.get(weight)) is not None
    }
    return [
        ([weight for bucket in group.buckets for weight in bucket.params_list], group.start_param_sync)
        for group in groups.values()
    ]


def _layers(
    part: Any, place: Callable[[Iterable[torch.Tensor]], float]
) -> list[tuple[list[torch.Tensor], Callable[[], Any] | None]]:
    weight_of = {copy: weight for weight, copy in _copies(part)}
    by_layer: defaultdict[float, list[torch.Tensor]] = defaultdict(list)
    for group in part.optimizer.param_groups:
        for stepped in group["params"]:
            weight = weight_of.get(stepped, stepped)
            by_layer[place([weight])].append(weight)
    return [(weights, None) for weights in by_layer.values()]


def _copies(part: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(weight, what is stepped in its place)"""
    for weights, copies in COPIES[type(part)]:
        for groups in zip(getattr(part, weights), getattr(part, copies), strict=True):
            yield from zip(*groups, strict=True)
