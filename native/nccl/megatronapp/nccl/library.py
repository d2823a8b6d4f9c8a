"""The plug-in as this process has it open: NCCL finds the same one, by its path, in NCCL_PROFILER_PLUGIN."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).with_name("libnccl-profiler-megatronapp.so")
OLDEST = (2, 28)
"""The first NCCL with version 5 of the interface."""
SLOW_TIMES = ((2, 31), (2, 32))
"""From one to below the other a kernel that tells its times also writes those of its phases, whoever asks: 4 to 13 % of
small all-reduces (NVIDIA/nccl issue 2355)."""

_COLLECTIVE, _MESSAGE, _PROXY_OPERATION, _PROXY_STEP, _KERNEL_CHANNEL = (1 << bit for bit in (1, 2, 3, 4, 6))
_COPY_ENGINE = 1 << 12


class Level(IntEnum):
    """What NCCL is asked to tell; each has what those before it have."""

    OFF = 0
    CALLS = _COLLECTIVE | _MESSAGE | _COPY_ENGINE
    """What was called, and when."""
    TIMES = CALLS | _KERNEL_CHANNEL
    """When it ran, by the GPU's clock."""
    ALL = TIMES | _PROXY_OPERATION | _PROXY_STEP
    """What its network transfers waited for."""


def open_segment(ring_bytes: int, lanes: int) -> int:
    """Make the recorder; before NCCL makes a communicator. Returns the descriptor of its memory, which stays the
    library's: duplicate it. Raises OSError where there is no memory, or a ring of this size can't be."""
    error = ctypes.create_string_buffer(512)
    descriptor: int = _library().megatronapp_nccl_open(ring_bytes, lanes, error, len(error))
    if descriptor < 0:
        raise OSError(error.value.decode(errors="replace"))
    return descriptor


def ask_for(level: Level) -> None:
    """From now on; what was called before goes on as it was."""
    _library().megatronapp_nccl_ask_for(int(level))


def supported_level(version: tuple[int, ...], wanted: Level) -> tuple[Level, str]:
    """What may be asked of this version of NCCL, and in one line why it is less than wanted; empty where it is not."""
    name = ".".join(map(str, version))
    if version[:2] < OLDEST:
        return Level.OFF, f"NCCL {name} has no profiler interface that can be used; 2.28 (PyTorch 2.11) or newer has"
    if SLOW_TIMES[0] <= version[:2] < SLOW_TIMES[1] and wanted > Level.CALLS:
        return (
            Level.CALLS,
            f"NCCL {name} is 4 to 13 % slower in small all-reduces that tell their times: calls only",
        )
    return wanted, ""


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.megatronapp_nccl_open.argtypes = [ctypes.c_ulong, ctypes.c_uint, ctypes.c_char_p, ctypes.c_ulong]
    library.megatronapp_nccl_open.restype = ctypes.c_int
    library.megatronapp_nccl_ask_for.argtypes = [ctypes.c_uint]
    library.megatronapp_nccl_ask_for.restype = None
    return library
