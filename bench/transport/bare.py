"""Half a round trip between two ranks, on two GPUs or on one: the engine beside a bare exchange that promises nothing.

The bare one is what is left of the protocol when nothing can go wrong: slots that are opened once, a side stream that
waits for an event and for the slot, one copy, two flags in host memory, no tags, no matching, no copy out of the slots.
Receives are posted ahead, or just before their turn. Where both ranks are on one GPU, it switches between two
processes: their turns are measured there, not the engine.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from bench.transport.gpu import spawn
from megatronapp.rdma import Config, Engine, Tag

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
ROUNDS = 9
COUNT = 100
AHEAD, AT_ONCE = 4, 1
"""Receives that are posted before what they receive is sent."""
LIMIT_RATIO, OTHER_LIMIT_RATIO, SMALL_BYTES = 1.15, 1.5, 1 << 20
"""Between two GPUs: below SMALL_BYTES with receives posted ahead; otherwise."""
SLOTS = 8
FLAG_BYTES = 64
U32, U64, POINTER, SIZE = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t


def check(status: int) -> None:
    if status:
        raise SystemExit(f"the CUDA driver answers with error {status}")


class Bare:
    """Between this rank and the other, over `folder`."""

    name = "bare"

    def __init__(self, rank: int, folder: str, largest: int) -> None:
        self._rank, self._cuda = rank, ctypes.CDLL("libcuda.so.1")
        for name, arguments in {
            "cuStreamWriteValue32_v2": [POINTER, U64, U32, U32],
            "cuStreamWaitValue32_v2": [POINTER, U64, U32, U32],
            "cuMemcpyAsync": [U64, U64, SIZE, POINTER],
            "cuMemHostRegister_v2": [POINTER, SIZE, U32],
            "cuMemHostGetDevicePointer_v2": [ctypes.POINTER(U64), POINTER, U32],
            "cuMemAlloc_v2": [ctypes.POINTER(U64), SIZE],
        }.items():
            getattr(self._cuda, name).argtypes = arguments
        self._largest = largest
        self._flags = self._share_flags(folder)
        self._theirs = self._share_slots()
        self._side = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self._events = [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]
        self._sent = self._posted = self._received = 0
        self._source = torch.zeros(largest, dtype=torch.uint8, device="cuda")
        self.size = largest

    def resize(self, size: int) -> None:
        self.size = size

    def _share_flags(self, folder: str) -> int:
        """`ready` and `done` of each slot, of the messages to rank 0 and to rank 1."""
        bytes_of_flags = mmap.PAGESIZE * (1 + 2 * 2 * SLOTS * FLAG_BYTES // mmap.PAGESIZE)
        path = Path(folder) / "flags"
        if self._rank == 0:
            path.write_bytes(bytes(bytes_of_flags))
        dist.barrier()
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), bytes_of_flags)
        host = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        check(self._cuda.cuMemHostRegister_v2(host, bytes_of_flags, 3))
        device = U64()
        check(self._cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), host, 0))
        return int(device.value)

    def _share_slots(self) -> list[torch.Tensor]:
        """The other rank's, opened here."""
        from torch.multiprocessing.reductions import reduce_tensor

        self._slots = [torch.zeros(self._largest, dtype=torch.uint8, device="cuda") for _ in range(SLOTS)]
        described: list[Any] = [None, None]
        dist.all_gather_object(described, [reduce_tensor(slot) for slot in self._slots])  # type: ignore[no-untyped-call]
        theirs = [rebuild(*arguments) for rebuild, arguments in described[1 - self._rank]]
        torch.zeros(1, device="cuda").to(theirs[0].device)  # PyTorch lets a GPU reach another at the first copy there
        return theirs

    def _flag(self, to: int, slot: int, done: int) -> int:
        return self._flags + ((to * SLOTS + slot) * 2 + done) * FLAG_BYTES

    def post(self) -> None:
        """The stream is through with what was in the slot before."""
        slot, use = self._posted % SLOTS, self._posted // SLOTS + 1
        stream = torch.cuda.current_stream().cuda_stream
        check(self._cuda.cuStreamWriteValue32_v2(stream, self._flag(self._rank, slot, 0), use, 0))
        self._posted += 1

    def send(self) -> None:
        slot, use = self._sent % SLOTS, self._sent // SLOTS + 1
        event = self._events[slot]
        event.record()
        self._side.wait_event(event)
        side, to, size = self._side.cuda_stream, 1 - self._rank, self.size
        check(self._cuda.cuStreamWaitValue32_v2(side, self._flag(to, slot, 0), use, 0))
        check(self._cuda.cuMemcpyAsync(self._theirs[slot].data_ptr(), self._source.data_ptr(), size, side))
        check(self._cuda.cuStreamWriteValue32_v2(side, self._flag(to, slot, 1), use, 0))
        self._sent += 1

    def receive(self) -> None:
        slot, use = self._received % SLOTS, self._received // SLOTS + 1
        stream = torch.cuda.current_stream().cuda_stream
        check(self._cuda.cuStreamWaitValue32_v2(stream, self._flag(self._rank, slot, 1), use, 0))
        self._received += 1

    def ping_pong(self, count: int, ahead: int) -> None:
        for _ in range(ahead):
            self.post()
        for i in range(count):
            if self._rank == 0:
                self.send()
                self.receive()
            else:
                self.receive()
                self.send()
            if i + ahead < count:
                self.post()

    def finish(self) -> None:
        torch.cuda.synchronize()


class Native:
    """The engine, with as many receives posted ahead."""

    name = "native"

    def __init__(self, engine: Engine, largest: int) -> None:
        self._engine, self._largest, self._step = engine, largest, 0
        self._open: list[Any] = []
        self._sent = torch.zeros(largest, dtype=torch.uint8, device="cuda")
        self._received = [torch.zeros(largest, dtype=torch.uint8, device="cuda") for _ in range(SLOTS)]
        self.resize(largest)

    def resize(self, size: int) -> None:
        self._sending, self._receiving = self._sent[:size], [buffer[:size] for buffer in self._received]

    def ping_pong(self, count: int, ahead: int) -> None:
        self._step += 1
        engine, other = self._engine, 1 - self._engine.rank
        receives = [self._post(i) for i in range(ahead)]
        for i in range(count):
            if engine.rank == 0:
                self._open.append(engine.isend(self._sending, other, Tag(1, microbatch=i, round=self._step)))
                receives[i].wait_stream()
            else:
                receives[i].wait_stream()
                self._open.append(engine.isend(self._sending, other, Tag(1, microbatch=i, round=self._step)))
            if i + ahead < count:
                receives.append(self._post(i + ahead))
        self._open += receives

    def _post(self, i: int) -> Any:
        tag = Tag(1, microbatch=i, round=self._step)
        return self._engine.irecv(self._receiving[i % SLOTS], 1 - self._engine.rank, tag)

    def finish(self) -> None:
        torch.cuda.synchronize()
        for handle in self._open:
            handle.wait()
        self._open.clear()


def half_round_trip(action: Callable[[int, int], None], finish: Callable[[], None], ahead: int) -> float:
    """Median seconds, of the rank that needs longer."""
    took = []
    for number in range(ROUNDS + 1):
        finish()
        dist.barrier()
        start = time.perf_counter()
        action(COUNT, ahead)
        torch.cuda.synchronize()
        if number:  # the first opens memory
            took.append((time.perf_counter() - start) / COUNT / 2)
        finish()
    longest = torch.tensor([statistics.median(took)])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()


def run_rank(rank: int, folder: str, port: int, world_size: int) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    store = TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
    torch.zeros(1, device="cuda")
    with Engine(rank, 2, PrefixStore("bench", store), config=Config(require=("cuda_ipc",))) as engine:
        engine.connect([1 - rank])
        ways: list[Native | Bare] = [Native(engine, max(SIZES)), Bare(rank, folder, max(SIZES))]
        for size, ahead in product(SIZES, (AHEAD, AT_ONCE)):
            found = {}
            for way in ways:
                way.resize(size)
                found[way.name] = half_round_trip(way.ping_pong, way.finish, ahead) * 1e6
            if rank == 0:
                print(row(size, ahead, found["native"], found["bare"]), flush=True)
        dist.barrier()
    dist.destroy_process_group()


def row(size: int, ahead: int, native: float, bare: float) -> str:
    limit = LIMIT_RATIO if size < SMALL_BYTES and ahead == AHEAD else OTHER_LIMIT_RATIO
    said = f"{limit:10.2f} {'' if native / bare <= limit else 'missed'}" if torch.cuda.device_count() > 1 else ""
    return f"{size >> 10:6} KiB {ahead:8} {native:10.1f} {bare:10.1f} {native / bare:10.2f} {said}".rstrip()


def report() -> None:
    where = "two GPUs" if torch.cuda.device_count() > 1 else "one GPU"
    print(f"\n{torch.cuda.get_device_name(0)}: half a round trip, µs, two ranks on {where}")
    print(f"{'':10} {'receives':>8} {'native':>10} {'bare':>10} {'ratio':>10} {'must':>10}".rstrip())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        spawn(run_rank, folder, 2)
