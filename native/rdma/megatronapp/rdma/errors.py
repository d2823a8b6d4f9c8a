"""What can go wrong between ranks. Every message names the peer and says what to do where that is known.

TransportError
├── PeerLostError             the peer's process ended, stopped, closed its engine, or can't be reached any more
├── TransferTimeoutError      not in time; the peer may just be late
├── MismatchError             both ends mean different tensors by one tag
├── TagError                  a tag was used twice, or its round is too old (also a ValueError)
├── BackpressureError         this program's own open messages hold all that there is: wait for some of them
├── CancelledError            taken back by `cancel`
├── CorruptDataError          what arrived is not what was sent
├── EngineClosedError         the engine was closed or aborted
├── HandshakeError            the other end is not who it should be
└── LaneUnavailableError      a required lane is not there, or none moves this memory
"""

from __future__ import annotations


class TransportError(Exception):
    """Base of all errors of the transport."""


class PeerLostError(TransportError):
    """`rank` is the lost one."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank = rank
        self.reason = reason


class TransferTimeoutError(TransportError, TimeoutError):
    pass


class MismatchError(TransportError):
    pass


class TagError(TransportError, ValueError):
    pass


class BackpressureError(TransportError):
    pass


class CancelledError(TransportError):
    pass


class CorruptDataError(TransportError):
    pass


class EngineClosedError(TransportError):
    pass


class HandshakeError(TransportError):
    pass


class LaneUnavailableError(TransportError):
    pass
