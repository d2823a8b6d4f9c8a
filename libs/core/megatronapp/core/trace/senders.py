"""Who has sent a message on the bus. Nearly all are of processes that have spoken before: what tells who they are is
the same, byte for byte, and is read and checked once.
"""

from __future__ import annotations

import sys
from functools import lru_cache

from megatronapp.core.trace import limits
from megatronapp.core.trace.validate import check_identity
from megatronapp.core.trace.values import Identity
from megatronapp.v1 import trace_pb2


def sender_of(identity: bytes) -> Identity:
    """Of a serialized Identity. Raises DecodeError, and ImplausibleError for what can't name a rank."""
    return _known(identity) if len(identity) <= limits.MAX_KEPT_SENDER_BYTES else _read(identity)


def _read(identity: bytes) -> Identity:
    read = trace_pb2.Identity.FromString(identity)
    check_identity(read)
    return Identity(
        run=sys.intern(read.run),
        job=sys.intern(read.job),
        attempt=read.attempt,
        rank=read.rank,
        incarnation=read.incarnation,
    )


_known = lru_cache(maxsize=limits.MAX_KEPT_SENDERS)(_read)
