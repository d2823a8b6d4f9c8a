"""What the NCCL of this machine's PyTorch can be asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from megatronapp.nccl.library import LIBRARY, Level, supported_level


def checks() -> Iterator[tuple[str, bool | None, str]]:
    """For `megatronapp doctor`: (name, there or optional, in words)."""
    other = os.environ.get("NCCL_PROFILER_PLUGIN", "")
    if other not in ("", str(LIBRARY)):
        yield "NCCL_PROFILER_PLUGIN", None, f"is {other}: NCCL takes one plug-in, so --nccl-trace would record nothing"
    version = _nccl_version()
    if version is None:
        yield "NCCL of PyTorch", None, "none: this PyTorch is built without it"
        return
    level, why = supported_level(version, Level.ALL)
    name = ".".join(map(str, version))
    yield "NCCL of PyTorch", level is Level.ALL or None, why or f"{name}: calls, times of the GPU, waits of the network"


def _nccl_version() -> tuple[int, ...] | None:
    if find_spec("torch") is None:
        return None
    torch = import_module("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version: tuple[int, ...] = torch.cuda.nccl.version()
    return version
