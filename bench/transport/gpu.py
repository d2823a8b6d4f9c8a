"""GPU tensors between two GPUs of this host: the cuda_ipc lane, NCCL, and the bare copy engine, side by side."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from megatronapp.rdma import Config, Engine, Tag

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20, 128 << 20)
ROUNDS = 7
WINDOW = 4
PRODUCT = 8192
PRODUCTS = 45
EXCHANGES = 4
EXCHANGE_BYTES = 16 << 20


def messages(size: int) -> int:
    return 100 if size <= 1 << 20 else 32


class Native:
    """The engine, with the window of receives that a pipeline's schedule posts ahead."""

    name = "native"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._other = 1 - engine.rank
        self._step = 0
        self._open: list[Any] = []
        self.sent = [torch.zeros(max(SIZES), dtype=torch.uint8, device="cuda") for _ in range(WINDOW)]
        self.received = [torch.zeros(max(SIZES), dtype=torch.uint8, device="cuda") for _ in range(WINDOW)]
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.resize(max(SIZES))

    def resize(self, size: int) -> None:
        """To messages of so many bytes: to take a part of a tensor each time would cost as much as to send it."""
        self.sending = [buffer[:size] for buffer in self.sent]
        self.receiving = [buffer[:size] for buffer in self.received]

    def _tag(self, i: int) -> Tag:
        return Tag(1, microbatch=i, round=self._step)

    def _send(self, i: int) -> None:
        self._open.append(self._engine.isend(self.sending[i % WINDOW], self._other, self._tag(i)))

    def _receive(self, i: int) -> Any:
        handle = self._engine.irecv(self.receiving[i % WINDOW], self._other, self._tag(i))
        self._open.append(handle)
        return handle

    def one_way(self, count: int) -> None:
        self._step += 1
        self._pass(count, sends=self._engine.rank == 0, receives=self._engine.rank == 1)

    def both_ways(self, count: int) -> None:
        self._step += 1
        self._pass(count, sends=True, receives=True)

    def _pass(self, count: int, *, sends: bool, receives: bool) -> None:
        posted: list[Any] = []
        for i in range(count):
            if receives:
                if len(posted) == WINDOW:
                    posted.pop(0).wait_stream()
                posted.append(self._receive(i))
            if sends:
                self._send(i)
        for handle in posted:
            handle.wait_stream()

    def ping_pong(self, count: int) -> None:
        self._step += 1
        first = self._engine.rank == 0
        for i in range(count):
            receive = self._receive(i)
            if not first:
                receive.wait_stream()
            self._send(i)
            if first:
                receive.wait_stream()

    def exchange_beside(self) -> None:
        self._step += 1
        with torch.cuda.stream(self._side):
            self._pass(EXCHANGES, sends=True, receives=True)

    def finish(self) -> None:
        finish(self._open)


class Nccl:
    name = "nccl"

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._other = 1 - rank
        self._sent = torch.zeros(max(SIZES), dtype=torch.uint8, device="cuda")
        self._received = torch.zeros(max(SIZES), dtype=torch.uint8, device="cuda")
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.resize(max(SIZES))

    def resize(self, size: int) -> None:
        self.sending, self.receiving = self._sent[:size], self._received[:size]

    def one_way(self, count: int) -> None:
        for _ in range(count):
            dist.send(self.sending, 1) if self._rank == 0 else dist.recv(self.receiving, 0)

    def both_ways(self, count: int) -> None:
        for _ in range(count):
            send = dist.P2POp(dist.isend, self.sending, self._other)
            receive = dist.P2POp(dist.irecv, self.receiving, self._other)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()

    def ping_pong(self, count: int) -> None:
        for _ in range(count):
            for turn in range(2):
                if turn == self._rank:
                    dist.send(self.sending, self._other)
                else:
                    dist.recv(self.receiving, self._other)

    def exchange_beside(self) -> None:
        with torch.cuda.stream(self._side):
            self.both_ways(EXCHANGES)

    def finish(self) -> None:
        torch.cuda.synchronize()


def finish(handles: list[Any]) -> None:
    """Wait until the device and all messages are done, and forget these."""
    torch.cuda.synchronize()
    for handle in handles:
        handle.wait()
    handles.clear()


def timed(action: Callable[[int], None], finish: Callable[[], None], size: int) -> float:
    """Median seconds a message, of the rank that needs longer. `action(count)` moves that many."""
    count, took = messages(size), []
    for i in range(ROUNDS + 1):
        finish()
        dist.barrier()
        start = time.perf_counter()
        action(count)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - start) / count)
        finish()
        if i == 0:
            took.clear()  # the first opens memory and connections
    longest = torch.tensor([statistics.median(took)])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()


def bare_copy(size: int) -> float:
    """Seconds of a copy to the other GPU with no protocol around it."""
    target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{1 - torch.cuda.current_device()}")
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    took = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(messages(size)):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - start) / messages(size))
    return statistics.median(took)


def product_milliseconds(ways: list[Native | Nccl]) -> dict[str, float]:
    """Of a matrix product, alone and while messages move, in turns: the GPU's clock changes with its warmth."""
    matrix = torch.randn(PRODUCT, PRODUCT, dtype=torch.bfloat16, device="cuda")
    for way in ways:
        way.resize(EXCHANGE_BYTES)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(PRODUCTS):
        for beside in (None, *ways):
            torch.cuda.synchronize()
            dist.barrier()
            if beside is not None:
                beside.exchange_beside()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            torch.mm(matrix, matrix)
            end.record()
            (beside.finish if beside is not None else torch.cuda.synchronize)()
            times["alone" if beside is None else beside.name].append(begin.elapsed_time(end))
    return {name: statistics.median(taken[5:]) for name, taken in times.items()}


def run_rank(rank: int, folder: str, port: int, world_size: int) -> None:
    torch.cuda.set_device(rank)
    store = TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=world_size, store=store)
    torch.zeros(1, device="cuda")
    engine = Engine(rank, 2, PrefixStore("bench", store), config=Config(require=("cuda_ipc",)))
    engine.connect([1 - rank])
    ways: list[Native | Nccl] = [Native(engine), Nccl(rank)]
    found: dict[tuple[str, str, int], float] = {}
    for size in SIZES:
        for measure in ("one_way", "both_ways", "ping_pong"):
            for way in ways:
                way.resize(size)
                found[measure, way.name, size] = timed(getattr(way, measure), way.finish, size)
        dist.barrier()
        if rank == 0:
            found["one_way", "bare copy", size] = bare_copy(size)
        dist.barrier()
    for name, milliseconds in product_milliseconds(ways).items():
        found["product", name, PRODUCT] = milliseconds
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    engine.close()
    dist.destroy_process_group()


def spawn(target: Callable[[int, str, int, int], None], folder: str, world_size: int) -> None:
    """Calls `target(rank, folder, port, world_size)` in a process for each rank. Raises SystemExit when one fails."""
    port = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False).port
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=target, args=(r, folder, port, world_size)) for r in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"the ranks ended with {[process.exitcode for process in ranks]}")


def report() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(run_rank, folder, 2)
        found = torch.load(Path(folder) / "found.pt", weights_only=False)
    print_tables(found, os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default"))


def print_tables(found: dict[tuple[str, str, int], float], connections: str) -> None:
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    print(f"\n{torch.cuda.get_device_name(0)}, NCCL {version}, hardware queues: {connections}")
    print(f"{'':10}{'one way GB/s':>36}{'ratios':>14}{'both ways GB/s each':>27}{'half round trip µs':>30}")
    head = ("native", "nccl", "bare copy", "/nccl", "/bare", "native", "nccl", "/nccl", "native", "nccl", "/nccl")
    print(f"{'':10}" + "".join(f"{text:>10}" for text in head))
    for size in SIZES:
        speed = {key: size / found[key] / 1e9 for key in found if key[2] == size and key[0] != "product"}
        one, bare = speed["one_way", "native", size], speed["one_way", "bare copy", size]
        one_nccl = speed["one_way", "nccl", size]
        both, both_nccl = speed["both_ways", "native", size], speed["both_ways", "nccl", size]
        half, half_nccl = (found["ping_pong", name, size] / 2 * 1e6 for name in ("native", "nccl"))
        cells = (one, one_nccl, bare, one / one_nccl, one / bare, both, both_nccl, both / both_nccl)
        print(f"{size >> 10:6} KiB" + "".join(f"{cell:>10.2f}" for cell in (*cells, half, half_nccl, half / half_nccl)))
    alone = found["product", "alone", PRODUCT]
    for name in ("native", "nccl"):
        slower = found["product", name, PRODUCT] / alone - 1
        print(
            f"matrix product of {alone:.3f} ms beside {EXCHANGES} x {EXCHANGE_BYTES >> 20} MiB, {name}: {slower:+.2%}"
        )
