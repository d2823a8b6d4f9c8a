"""Who has sent a message on the bus. Nearly all are of processes that have spoken before: what tells who they are is
the same, byte for byte, and is read and checked once.
"""

from __future__ import annotations

from functools import lru_cache

from megatronapp.core.trace import limits
from megatronapp.core.trace.validate import check_identity
from megatronapp.core.trace.values import Identity
from megatronapp.v1 import trace_pb2


@lru_cache(maxsize=limits.MAX_KEPT_SENDERS)
def sender_of(identity: bytes) -> Identity:
    """Of a serialized Identity. Raises DecodeError, and ImplausibleError for what can't name a rank."""
    read = trace_pb2.Identity.FromString(identity)
    check_identity(read)
    return Identity(
        run=read.run, job=read.job, attempt=read.attempt, rank=read.rank, incarnation=read.incarnation
    )  # fmt: skip
