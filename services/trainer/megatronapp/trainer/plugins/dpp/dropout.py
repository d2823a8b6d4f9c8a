"""Dropout whose draws do not depend on the order of execution.

Before each forward pass every random state that megatron-core draws from is set from a key: the run's seed, the state's
own coordinates (as megatron-core seeds it: the default one by stage, so that tensor-parallel ranks draw the same hidden
masks; the tensor-parallel one by stage and tensor rank; that of experts by stage and expert coordinates), and step,
chunk and microbatch. A schedule of any order draws the same; without the key a chunk's draws follow what ran before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import (
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    get_expert_parallel_rng_tracker_name,
)
from megatron.core.utils import unwrap_model

from megatronapp.trainer.plugins.base import ForwardStep

Coordinates = tuple[int, ...]


class KeyedDropout:
    """Wraps the forward step. A chunk's microbatches run in their order, which is how they are counted."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device = seed, device
        self._step = 0
        self._begun: Counter[int] = Counter()
        self._states = coordinates()

    def begin_step(self, step: int) -> None:
        self._step = step
        self._begun.clear()

    def wrap(self, function: ForwardStep) -> ForwardStep:
        def forward_step(iterator: Any, model: torch.nn.Module) -> Any:
            if model.training:
                self._set_states(getattr(unwrap_model(model), "vp_stage", None) or 0)
            return function(iterator, model)

        return forward_step

    def _set_states(self, chunk: int) -> None:
        microbatch = self._begun[chunk]
        self._begun[chunk] += 1
        tracker = get_cuda_rng_tracker()
        states = tracker.get_states()
        for name, place in self._states.items():
            generator = torch.Generator(self._device)
            generator.manual_seed(key(name, self._seed, *place, self._step, chunk, microbatch))
            if name == "default":
                (torch.cuda if self._device.type == "cuda" else torch).set_rng_state(generator.get_state())
            elif name in states:
                states[name] = generator.get_state()
        tracker.set_states(states)


def coordinates() -> dict[str, Coordinates]:
    """By the name of a random state: which ranks draw the same from it."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    tensor = parallel_state.get_tensor_model_parallel_rank()
    expert = parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank()
    return {
        "default": (stage,),
        get_data_parallel_rng_tracker_name(): (stage,),
        "model-parallel-rng": (stage, tensor),
        get_expert_parallel_rng_tracker_name(): (stage, *expert),
    }


def key(name: str, *numbers: int) -> int:
    """A seed from all of them."""
    digest = hashlib.sha256(repr((name, *numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
