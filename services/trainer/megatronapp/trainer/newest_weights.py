"""Weights as the optimizer has left them, on every rank: with --overlap-param-gather they come to a rank in its next
forward pass alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def newest_weights(chunks: Sequence[Any], config: Any) -> Iterator[None]:
    """Inside, every rank holds them, and no forward pass asks for them. `config`: the model's. All ranks call it."""
    waiting = [chunk for chunk in chunks if getattr(chunk, "remove_forward_pre_hook_handles", None)]
    synchronizing = config.param_sync_func
    if waiting:
        config.param_sync_func = None
    for chunk in waiting:
        chunk.disable_forward_pre_hook()
    try:
        yield
    finally:
        if waiting:
            config.param_sync_func = synchronizing
        for chunk in waiting:
            chunk.enable_forward_pre_hook()
