"""Dropout whose draws do not depend on the order of execution.

Before each forward pass every random state that megatron-core draws from is set from a key: the run's seed, the state's
own coordinates (as megatron-core seeds it: the default one by stage, so that tensor-parallel ranks draw the same hidden
masks; the tensor-parallel one by stage and tensor rank; that of experts by stage and expert coordinates), and step,
chunk and microbatch. A schedule of any order draws the same; without the key a chunk's draws follow what ran before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import (
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    get_expert_parallel_rng_tracker_name,
)
from megatron.core.utils import unwrap_model

DEFAULT = "default"
MODEL_PARALLEL = "model-parallel-rng"
"""Under sequence parallelism all transformer layers run in its fork."""

Coordinates = tuple[int, ...]


class KeyedDropout:
    """Wraps the forward step. A chunk's microbatches run in their order, which is how they are counted."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._states = KeyedStates(seed, device)
        self._stage = parallel_state.get_pipeline_model_parallel_rank()
        self._step = 0
        self._begun: Counter[int] = Counter()

    def begin_step(self, step: int) -> None:
        self._step = step
        self._begun.clear()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward_step(iterator: Any, model: torch.nn.Module) -> Any:
            if model.training:
                chunk = getattr(unwrap_model(model), "vp_stage", None) or 0
                self._states.set(self._step, self._stage, chunk, self._begun[chunk])
                self._begun[chunk] += 1
            return function(iterator, model)

        return forward_step


class KeyedStates:
    """Sets all random states to what a stage's chunk draws from for a microbatch, on whichever rank that is run."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device = seed, device

    def set(self, step: int, stage: int, chunk: int, microbatch: int, *, current: str = DEFAULT) -> None:
        """current: the state that is drawn from now: the default one, or the one in whose fork the caller is."""
        tracker = get_cuda_rng_tracker()
        states = tracker.get_states()
        for name, place in coordinates(stage).items():
            generator = torch.Generator(self._device)
            generator.manual_seed(key(name, self._seed, *place, step, chunk, microbatch))
            if name == current:
                (torch.cuda if self._device.type == "cuda" else torch).set_rng_state(generator.get_state())
            if name in states:
                states[name] = generator.get_state()
        tracker.set_states(states)

    def read(self) -> torch.Tensor:
        """All of them as they are now, for a rank that goes on with the same draws: uint8 [bytes]."""
        states = get_cuda_rng_tracker().get_states()
        return torch.cat([self._default(), *(states[name] for name in sorted(states))])

    def restore(self, read: torch.Tensor) -> None:
        """What another rank has read."""
        tracker = get_cuda_rng_tracker()
        states = tracker.get_states()
        names = sorted(states)
        lengths = [self._default().numel(), *(states[name].numel() for name in names)]
        default, *others = (state.clone() for state in read.split(lengths))  # torch reads views at the wrong place
        (torch.cuda if self._device.type == "cuda" else torch).set_rng_state(default)
        tracker.set_states(dict(zip(names, others, strict=True)))

    def _default(self) -> torch.Tensor:
        return torch.cuda.get_rng_state() if self._device.type == "cuda" else torch.get_rng_state()


def coordinates(stage: int) -> dict[str, Coordinates]:
    """By the name of a random state: which ranks draw the same from it."""
    tensor = parallel_state.get_tensor_model_parallel_rank()
    expert = parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank()
    return {
        DEFAULT: (stage,),
        get_data_parallel_rng_tracker_name(): (stage,),
        MODEL_PARALLEL: (stage, tensor),
        get_expert_parallel_rng_tracker_name(): (stage, *expert),
    }


def key(name: str, *numbers: int) -> int:
    """A seed from all of them."""
    digest = hashlib.sha256(repr((name, *numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
