"""Ranks that tests of one file share, started once for each size of world: beginning with CUDA and NCCL takes a process
longer than a tiny training."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from tests.support.forked import Ranks

T = TypeVar("T")


class Worlds:
    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._ranks: dict[int, Ranks] = {}

    def call(self, world_size: int, target: Callable[..., T], *args: object, timeout: float = 90.0) -> list[T]:
        """As `run_forked`, in processes that stay. A call leaves neither memory taken nor variables set."""
        if world_size not in self._ranks:
            self._ranks[world_size] = Ranks(world_size, self._environment)
        return self._ranks[world_size].call(_and_clean_up, target, *args, timeout=timeout)

    def close(self) -> None:
        for ranks in self._ranks.values():
            ranks.close()
        self._ranks.clear()


def _and_clean_up(target: Callable[..., T], *args: object) -> T:
    variables = dict(os.environ)  # megatron-core tells Transformer Engine by them which attention was asked for
    result = target(*args)
    os.environ.clear()
    os.environ.update(variables)
    gc.collect()
    torch.cuda.empty_cache()
    return result
