"""All random generators of a rank: Python's, NumPy's, torch's, the device's, and megatron-core's named ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from megatron.core import tensor_parallel


def read() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }


def restore(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state(states["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tracker"])
