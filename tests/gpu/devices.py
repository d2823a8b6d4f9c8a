"""How many GPUs there are for tests of several ranks.

MEGATRONAPP_GPU_REHEARSAL=4 plays tests that ask here on so many CPU ranks: what they do is tried before it takes GPUs'
time. What they show of GPUs is then shown of nothing.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

REHEARSED = int(os.environ.get("MEGATRONAPP_GPU_REHEARSAL", "0"))
DEVICES = REHEARSED or torch.cuda.device_count()
DEVICE = "cpu" if REHEARSED else "cuda"


def needs(devices: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(devices > DEVICES, reason=f"needs {devices} CUDA devices")
