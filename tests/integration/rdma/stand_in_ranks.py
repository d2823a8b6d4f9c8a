"""Two native engines of one process that move "GPU memory" of a stand-in for the CUDA driver.

python tests/integration/rdma/stand_in_ranks.py libcuda.so.1
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

DRIVER = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch brings the machine's own, where it has one
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402

from megatronapp.rdma import _native  # noqa: E402
from megatronapp.rdma._native import Direction, Status  # noqa: E402
from megatronapp.rdma.tag import Tag  # noqa: E402

SIZES = (0, 1, 31, 4096, 65_536, (1 << 20) + 17, 5 << 20)
MESSAGES = 30
SECONDS = 30.0
SETTINGS: dict[str, Any] = {
    "spin_seconds": 50e-6,
    "heartbeat_seconds": 1.0,
    "dead_after_seconds": 10.0,
    "checksum": True,
    "chunk_bytes": 0,
    "receive_pool_bytes": 16 << 20,
    "open_rounds": 4,
    "in_flight_bytes": 0,
}


def pair(lane: str, **settings: int) -> list[_native.Engine]:
    ends = socket.socketpair()
    segments = [_native.make_segment() for _ in range(2)] if lane == "cuda_ipc" else [-1, -1]
    chunks = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]  # of the receiving rank
    engines = [_native.Engine(**(SETTINGS | settings)) for _ in range(2)]
    for rank, engine in enumerate(engines):
        engine.attach(
            rank=1 - rank,
            socket=os.dup(ends[rank].fileno()),
            inbound=segments[rank],
            outbound=segments[1 - rank],
            cuda_ipc=lane == "cuda_ipc",
            own_chunks=chunks[rank][0].fileno(),
            peer_chunks=chunks[1 - rank][1].fileno(),
            ucx_address=b"",
            gpu=True,
        )
    return engines


class DlTensor(ctypes.Structure):
    """DLPack's; only its device is changed here."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("rest", ctypes.c_ubyte * 36))


Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
CurrentStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    """DLPack's table of functions."""

    _fields_ = (("rest", ctypes.c_ubyte * 40), ("describe", Describe), ("current_stream", CurrentStream))


def exchange_of_gpu() -> Any:
    """Torch's own, of tensors that are on a GPU: to the stand-in all memory is."""
    pointer, capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    torchs = Exchange.from_address(pointer(torch.Tensor.__dlpack_c_exchange_api__, EXCHANGE))

    def describe(tensor: torch.Tensor, found: Any) -> int:
        failed: int = torchs.describe(tensor, found)
        found.contents.device_type = CUDA
        return failed

    made = Exchange(torchs.rest, Describe(describe), CurrentStream(lambda *_: 0))
    ALIVE.append(made)
    return capsule(ctypes.addressof(made), EXCHANGE, None)


CUDA = 2
EXCHANGE = b"dlpack_exchange_api"
ALIVE: list[Exchange] = []


class OnGpu(torch.Tensor):
    __dlpack_c_exchange_api__ = exchange_of_gpu()


def post(
    engine: _native.Engine,
    direction: Direction,
    tensor: torch.Tensor,
    peer: int,
    number: int,
    *,
    on_gpu: bool = True,
    stream: int | None = None,
) -> _native.Message:
    receives = direction == Direction.RECEIVE
    message = engine.post(
        _native.Message,
        None,
        set(),
        receives,
        peer,
        peer if receives else 1 - peer,
        Tag(1, microbatch=number),
        tensor.as_subclass(OnGpu) if on_gpu else tensor,
        stream,
        0,
        SECONDS,
        0,
    )
    assert message is not None
    return message


def content(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def exchange(engines: list[_native.Engine], chance: random.Random) -> None:
    """Both ways, posted and waited for in random orders."""
    sizes = {(rank, i): chance.choice(SIZES) for rank in range(2) for i in range(MESSAGES)}
    sent = {key: content(size, hash(key)) for key, size in sizes.items()}
    received = {key: torch.zeros(size, dtype=torch.uint8) for key, size in sizes.items()}
    plan = [(direction, key) for direction in (Direction.SEND, Direction.RECEIVE) for key in sizes]
    messages = []
    for direction, (source, i) in chance.sample(plan, len(plan)):
        rank = source if direction == Direction.SEND else 1 - source
        tensor = (sent if direction == Direction.SEND else received)[source, i]
        messages.append((engines[rank], post(engines[rank], direction, tensor, 1 - rank, i)))
    for engine, message in chance.sample(messages, len(messages)):
        assert engine.wait(message, SECONDS, {message}) == 1
        assert message.status == Status.DONE, message.reason
    assert all(torch.equal(received[key], sent[key]) for key in sizes)


def lose_a_peer(engines: list[_native.Engine]) -> None:
    tensors = [torch.zeros(size, dtype=torch.uint8) for size in (9, 1 << 20)]
    waiting = post(engines[0], Direction.RECEIVE, tensors[0], 1, MESSAGES)
    held = post(engines[0], Direction.SEND, tensors[1], 1, MESSAGES)
    engines[1].abort("over")
    for message in (waiting, held):
        assert engines[0].wait(message, SECONDS, {message}) == 2
        assert message.status == Status.PEER_LOST
    engines[0].close(1.0)
    engines[1].close(1.0)


def abort_before_a_late_copy(engines: list[_native.Engine]) -> None:
    """The sender's stream is held up while the receiver gives up, closes, and uses its tensor for something else."""
    held = ctypes.c_uint32(0)
    DRIVER.cuStreamWaitValue32_v2(None, ctypes.c_uint64(ctypes.addressof(held)), 1, 0)
    new = torch.zeros(1 << 20, dtype=torch.uint8)
    receive = post(engines[0], Direction.RECEIVE, new, 1, MESSAGES)
    sent = post(engines[1], Direction.SEND, torch.full((1 << 20,), 255, dtype=torch.uint8), 0, MESSAGES)
    until(lambda: sent.in_use)  # its copy is given to the driver
    engines[0].abort("over")
    engines[0].close(1.0)
    assert not receive.in_use
    new.fill_(7)
    assert engines[1].wait(sent, SECONDS, {sent}) == 2
    engines[1].close(1.0)
    assert sent.in_use
    assert _native.end_settled() == 1
    held.value = 1
    until(lambda: _native.end_settled() == 0)
    assert not sent.in_use
    assert bool((new == 7).all())
    assert _native.pool_bytes() == 0


def abort_before_a_late_landing(engines: list[_native.Engine]) -> None:
    """The receiver's stream, which is to copy a message out, is held up while the engine is aborted and closed."""
    held = ctypes.c_uint32(0)
    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    receive = post(engines[0], Direction.RECEIVE, tensor, 1, MESSAGES)
    DRIVER.cuStreamWaitValue32_v2(None, ctypes.c_uint64(ctypes.addressof(held)), 1, 0)
    assert engines[0].wait_stream(receive, 0)
    engines[0].abort("over")
    engines[0].close(1.0)
    assert receive.in_use  # so long its tensor is kept
    assert _native.end_settled() == 1
    held.value = 1
    until(lambda: _native.end_settled() == 0)
    assert not receive.in_use
    engines[1].close(1.0)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


if __name__ == "__main__":
    for lane in ("staged", "cuda_ipc"):
        ranks = pair(lane)
        exchange(ranks, random.Random(3))
        lose_a_peer(ranks)
        print(f"{lane}: all bytes were right")
    abort_before_a_late_copy(pair("cuda_ipc"))
    abort_before_a_late_landing(pair("cuda_ipc"))
    print("late copies changed nothing")
