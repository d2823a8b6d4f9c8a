"""Asynchronous tensors between ranks, by tag and in any order, on whatever connects the two ranks."""

from megatronapp.rdma import flags
from megatronapp.rdma._native import Status, pool_bytes
from megatronapp.rdma.config import Config
from megatronapp.rdma.engine import Engine, neighbours
from megatronapp.rdma.errors import (
    BackpressureError,
    CancelledError,
    CorruptDataError,
    EngineClosedError,
    HandshakeError,
    LaneUnavailableError,
    MismatchError,
    PeerLostError,
    TagError,
    TransferTimeoutError,
    TransportError,
)
from megatronapp.rdma.handle import Completion, Handle
from megatronapp.rdma.lanes import Route
from megatronapp.rdma.pending_send import PendingSend
from megatronapp.rdma.tag import Kind, Tag
from megatronapp.rdma.tensors import Spec

__all__ = [
    "BackpressureError",
    "CancelledError",
    "Completion",
    "Config",
    "CorruptDataError",
    "Engine",
    "EngineClosedError",
    "Handle",
    "HandshakeError",
    "Kind",
    "LaneUnavailableError",
    "MismatchError",
    "PeerLostError",
    "PendingSend",
    "Route",
    "Spec",
    "Status",
    "Tag",
    "TagError",
    "TransferTimeoutError",
    "TransportError",
    "flags",
    "neighbours",
    "pool_bytes",
]
