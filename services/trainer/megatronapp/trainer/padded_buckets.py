"""The distributed optimizer's state by parameter, where gradients are reduced in several buckets.

megatron-core 0.16 gathers the state without the padding between buckets, and then looks each parameter up at its place
with the padding: behind the first padding it would save elements of other parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from megatronapp.trainer.patches import Patches


@contextmanager
def gathered_with_padding() -> Iterator[None]:
    """So long, the state lies where parameters are looked up."""
    gather, patches = DistributedOptimizer.get_parameter_state_dp_zero, Patches()

    def padded(optimizer: Any, *options: Any, **named: Any) -> Any:
        state = gather(optimizer, *options, **named)
        for index, buffer in enumerate(optimizer.buffers if state is not None else ()):
            for tensors in state[index].values():
                _pad(tensors, buffer)
        return state

    patches.set(DistributedOptimizer, "get_parameter_state_dp_zero", padded)
    try:
        yield
    finally:
        patches.restore()


def _pad(tensors: dict[str, Any], buffer: Any) -> None:
    if len(buffer.buckets) == 1 or buffer.numel == buffer.numel_unpadded:
        return
    sizes = [bucket.numel_unpadded for bucket in buffer.buckets]
    for name in [name for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)]:
        dense = tensors[name]
        tensors[name] = whole = dense.new_zeros(buffer.numel)
        for bucket, part in zip(buffer.buckets, dense.split(sizes), strict=True):
            whole[bucket.offset : bucket.offset + len(part)] = part
