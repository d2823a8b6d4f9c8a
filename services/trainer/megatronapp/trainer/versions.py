"""Versions of the libraries that a rank computes with."""

from __future__ import annotations

from importlib import metadata
from platform import python_version

import torch
import torch.distributed as dist


def library_versions(device: torch.device) -> dict[str, str]:
    """Of what computes: Python, torch, megatron-core, and on a GPU also CUDA and NCCL."""
    found = {
        "python": python_version(),
        "torch": torch.__version__,
        **{name: version for name in ("megatron-core", "megatronapp") if (version := _installed(name))},
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    if device.type == "cuda" and dist.is_nccl_available():
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def _installed(distribution: str) -> str:
    """Empty for code that was never installed, as on a path of its own."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
