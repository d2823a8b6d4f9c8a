"""Tensors of failed messages, kept until nothing can touch them any more.

A message ends at once when its engine is aborted or its peer is lost. What was given to the GPU's streams, or to a
network card, can't be called back: it goes on, and may still read or write the tensor. Such tensors are kept here, also
after the engine is closed, so that no allocator gives their memory to anything else. Peers on the same host can't write
into tensors at all: they write into memory that is made for them alone (src/lanes/gpu_memory.h).
"""

from __future__ import annotations

import threading

from megatronapp.rdma import _native

_kept: list[_native.Message] = []
_lock = threading.Lock()


def keep_while_in_use(message: _native.Message) -> None:
    if message.failed and message.in_use:
        with _lock:
            _kept.append(message)


def give_back() -> int:
    """Let go what is not in use any more; how many are. Called wherever engines are, at the latest by the next one."""
    if not _kept and _native.end_settled() == 0:
        return 0
    with _lock:
        _native.end_settled()
        _kept[:] = [message for message in _kept if message.in_use]
        return len(_kept)
