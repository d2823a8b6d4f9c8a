"""How the process keeps memory between messages."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""mallopt's parameters; see mallopt(3)."""
_KEPT_BYTES = 256 << 20
_STEP_BYTES = 16 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> None:
    """Have freed memory used again instead of given back to the kernel, which would hand it out page by page, cleared:
    for batches of spans that costs several times what is done with them. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_TOP_PAD, _STEP_BYTES)
