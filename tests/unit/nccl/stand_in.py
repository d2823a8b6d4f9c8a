"""A stand-in for NCCL: it opens the plug-in as NCCL does, by the symbol of a version of the interface, and calls it in
NCCL's order. The structures are written down here once more, whole, as each version has them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

COLL, P2P, PROXY_OP, PROXY_STEP, KERNEL_CH, CE_COLL = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 6, 1 << 12
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT, SEND_PEER_WAIT = 8, 9, 10, 11, 12, 20
KERNEL_CH_STOP = 22


def structure(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def description(version: int) -> type[ctypes.Structure]:
    tag = [("userTag", c_uint64)] if version >= 7 else []
    variant = [("kernelVariant", c_char_p), ("isSymColl", c_bool)] if version >= 7 else []
    coll = structure(
        "coll",
        *[("seqNumber", c_uint64), ("func", c_char_p), ("sendBuff", c_void_p), ("recvBuff", c_void_p)],
        *[("count", c_size_t), ("root", c_int), ("datatype", c_char_p), ("nChannels", c_uint8), ("nWarps", c_uint8)],
        *[("algo", c_char_p), ("proto", c_char_p), ("parentGroup", c_void_p), *variant, *tag],
    )
    p2p = structure(
        "p2p",
        *[("func", c_char_p), ("buff", c_void_p), ("datatype", c_char_p), ("count", c_size_t), ("peer", c_int)],
        *[("nChannels", c_uint8), ("parentGroup", c_void_p), *tag],
    )
    proxy_op = structure(
        "proxyOp",
        *[("pid", c_int), ("channelId", c_uint8), ("peer", c_int), ("nSteps", c_int), ("chunkSize", c_int)],
        ("isSend", c_int),
    )
    ce_coll = structure(
        "ceColl",
        *[("seqNumber", c_uint64), ("func", c_char_p), ("sendBuff", c_void_p), ("recvBuff", c_void_p)],
        *[("count", c_size_t), ("root", c_int), ("datatype", c_char_p), ("syncStrategy", c_char_p)],
        *[("intraBatchSync", c_bool), ("batchSize", c_uint32), ("numBatches", c_uint32), ("ceSeqNum", c_uint32)],
        *[("stream", c_void_p), *tag],
    )
    members = [
        ("coll", coll),
        ("p2p", p2p),
        ("proxyOp", proxy_op),
        ("proxyStep", structure("proxyStep", ("step", c_int))),
        ("kernelCh", structure("kernelCh", ("channelId", c_uint8), ("pTimer", c_uint64))),
        ("netPlugin", structure("netPlugin", ("id", c_int64), ("data", c_void_p))),
        *([("ceColl", ce_coll)] if version >= 6 else []),
    ]
    union = type("Union", (ctypes.Union,), {"_fields_": members})
    fields = [("type", c_uint64), ("parentObj", c_void_p), ("rank", c_int), ("of", union)]
    return type("Description", (ctypes.Structure,), {"_anonymous_": ("of",), "_fields_": fields})


class StateArguments(ctypes.Union):
    _fields_ = [("transSize", c_size_t), ("pTimer", c_uint64)]


LOGGER = ctypes.CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p)
HANDLE = ctypes.POINTER(c_void_p)


class Plugin(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        (
            "init",
            ctypes.CFUNCTYPE(c_int, HANDLE, c_uint64, ctypes.POINTER(c_int), c_char_p, c_int, c_int, c_int, LOGGER),
        ),
        ("startEvent", ctypes.CFUNCTYPE(c_int, c_void_p, HANDLE, c_void_p)),
        ("stopEvent", ctypes.CFUNCTYPE(c_int, c_void_p)),
        ("recordEventState", ctypes.CFUNCTYPE(c_int, c_void_p, c_int, ctypes.POINTER(StateArguments))),
        ("finalize", ctypes.CFUNCTYPE(c_int, c_void_p)),
    ]


_loaded: list[Nccl] = []
"""NCCL's mask lies there until the process ends."""


class Nccl:
    """One version of the interface. `mask` is NCCL's own."""

    def __init__(self, library: Path, version: int) -> None:
        self.plugin = Plugin.in_dll(ctypes.CDLL(str(library)), f"ncclProfiler_v{version}")
        self.description = description(version)
        self.mask = c_int(0)
        self.logged: list[str] = []
        _loaded.append(self)

    def communicator(self, commId: int, ranks: int = 2, rank: int = 0, name: bytes | None = None) -> Communicator:  # noqa: N803
        return Communicator(self, commId, ranks, rank, name)

    def start(self, context: int | None, kind: int, parent: int | None = None, **fields: dict[str, Any]) -> int | None:
        told = self.description(type=kind, parentObj=parent)
        for member, values in fields.items():
            for name, value in values.items():
                setattr(getattr(told, member), name, value)
        handle = c_void_p(0xDEAD)
        assert self.plugin.startEvent(context, ctypes.byref(handle), ctypes.addressof(told)) == 0
        return handle.value

    def stop(self, event: int | None) -> None:
        assert self.plugin.stopEvent(event) == 0

    def state(self, event: int | None, state: int, **values: int) -> None:
        assert self.plugin.recordEventState(event, state, ctypes.byref(StateArguments(**values))) == 0


class Communicator:
    def __init__(self, nccl: Nccl, hash_: int, ranks: int, rank: int, name: bytes | None) -> None:
        self.nccl, self.sequences = nccl, dict[bytes, int]()
        context = c_void_p()
        log = LOGGER(lambda _level, _flags, _file, _line, text: nccl.logged.append(text.decode()))
        self._log = log
        mask = ctypes.byref(nccl.mask)
        assert nccl.plugin.init(ctypes.byref(context), hash_, mask, name, 1, ranks, rank, log) == 0
        self.context = context.value

    def enqueue(self, func: bytes = b"AllReduce", count: int = 1024, channels: int = 2, **more: Any) -> int | None:
        """A collective that NCCL launches. It tells of it only where it is asked to, and counts it in any case."""
        sequence = self.sequences.get(func, 0)
        self.sequences[func] = sequence + 1
        if not self.nccl.mask.value & (COLL | KERNEL_CH):
            return None
        coll = {"seqNumber": sequence, "func": func, "count": count, "datatype": b"ncclBfloat16", "nChannels": channels}
        event = self.nccl.start(
            self.context, COLL, coll={**coll, "algo": b"RING", "proto": b"SIMPLE", "root": -1, **more}
        )
        self.nccl.stop(event)
        return event

    def message(self, func: bytes, peer: int, count: int = 64, channels: int = 1) -> int | None:
        if not self.nccl.mask.value & (P2P | KERNEL_CH):
            return None
        p2p = {"func": func, "peer": peer, "count": count, "datatype": b"ncclFloat32", "nChannels": channels}
        event = self.nccl.start(self.context, P2P, p2p=p2p)
        self.nccl.stop(event)
        return event

    def channel(self, event: int | None, channel: int, at_ns: int) -> int | None:
        return self.nccl.start(self.context, KERNEL_CH, event, kernelCh={"channelId": channel, "pTimer": at_ns})

    def end_channel(self, event: int | None, at_ns: int) -> None:
        self.nccl.state(event, KERNEL_CH_STOP, pTimer=at_ns)
        self.nccl.stop(event)

    def run(self, event: int | None, start_ns: int, end_ns: int, channels: int = 2) -> None:
        """The kernel, as NCCL's thread tells of it afterwards."""
        begun = [self.channel(event, each, start_ns + each) for each in range(channels)]
        for each, kernel in enumerate(begun):
            self.end_channel(kernel, end_ns - each)

    def proxy(self, event: int | None, sends: bool = True, pid: int | None = None) -> int | None:
        told = {"pid": pid if pid is not None else os.getpid(), "channelId": 0, "peer": 1, "isSend": int(sends)}
        return self.nccl.start(self.context, PROXY_OP, event, proxyOp=told)

    @contextmanager
    def step(self, proxy: int | None) -> Iterator[int | None]:
        event = self.nccl.start(self.context, PROXY_STEP, proxy, proxyStep={"step": 1})
        yield event
        self.nccl.stop(event)

    def finalize(self) -> None:
        assert self.nccl.plugin.finalize(self.context) == 0
