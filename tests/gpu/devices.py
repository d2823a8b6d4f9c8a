"""How many GPUs there are for tests of several ranks.

Of several workers (pytest -n) each has an equal share of the machine's GPUs for itself, where there are as many:
NCCL's kernels wait for those of other devices, and worlds that take turns on a device are hardly ever on all at once.

MEGATRONAPP_GPU_REHEARSAL=4 plays tests that ask here on so many CPU ranks: what they do is tried before it takes GPUs'
time. What they show of GPUs is then shown of nothing.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch


def _take_a_share(worker: str) -> None:
    """Of the devices that are visible; the processes that the worker starts have them, too."""
    if os.environ.get("MEGATRONAPP_GPUS_OF") == worker:
        return
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else list(map(str, range(torch.cuda.device_count())))
    each = len(devices) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if each:
        first = int(worker.removeprefix("gw")) * each
        os.environ |= {"CUDA_VISIBLE_DEVICES": ",".join(devices[first : first + each]), "MEGATRONAPP_GPUS_OF": worker}


if "PYTEST_XDIST_WORKER" in os.environ:
    _take_a_share(os.environ["PYTEST_XDIST_WORKER"])

REHEARSED = int(os.environ.get("MEGATRONAPP_GPU_REHEARSAL", "0"))
DEVICES = REHEARSED or torch.cuda.device_count()
DEVICE = "cpu" if REHEARSED else "cuda"


def needs(devices: int) -> pytest.MarkDecorator:
    """conftest.py skips it where there are fewer."""
    return pytest.mark.needs_gpus(devices)
