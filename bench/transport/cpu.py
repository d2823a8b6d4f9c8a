"""CPU tensors between two ranks of this host: the lanes, gloo, and a bare ring, side by side.

The cores of a virtual machine move: two samples of one thing can differ by five for that alone. So each sample is taken
between two probes of the cores' distance and counts only if both agree, as near or as far.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from megatronapp.rdma import Config, Engine, Spec, Tag

NEAR_BELOW_NS = 120.0
PROBE_ROUNDS = 2000
WINDOW = 4
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)

Seconds = Callable[[int], float]
Samples = dict[tuple[str, str, str, int], list[float]]
"""By (measure, contender, distance, bytes): seconds a message."""


class Cores:
    """The bare ring and the probe, compiled here. Rank 0 makes the shared memory."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self._library = ctypes.CDLL(str(folder / "ring.so"))
        self._library.shared_bytes.restype = ctypes.c_size_t
        for name in ("distance_ns", "one_way", "half_round_trip"):
            getattr(self._library, name).restype = ctypes.c_double
        path = folder / "ring.memory"
        if rank == 0:
            path.write_bytes(bytes(self._library.shared_bytes()))
        dist.barrier()
        descriptor = os.open(path, os.O_RDWR)
        assert self._library.open_shared(descriptor) == 0
        os.close(descriptor)
        self._buffers = torch.zeros(WINDOW * max(SIZES), dtype=torch.uint8)

    def near(self) -> bool:
        return float(self._library.distance_ns(self.rank, PROBE_ROUNDS)) < NEAR_BELOW_NS

    def one_way(self, streaming: bool) -> Seconds:
        def measure(size: int) -> float:
            address = ctypes.c_void_p(self._buffers.data_ptr())
            length, count = ctypes.c_size_t(size), messages(size)
            return float(self._library.one_way(self.rank, address, length, WINDOW, count, int(streaming)))

        return measure

    def half_round_trip(self, size: int) -> float:
        address = ctypes.c_void_p(self._buffers.data_ptr())
        return float(self._library.half_round_trip(self.rank, address, ctypes.c_size_t(size), round_trips(size)))


def compile_ring(folder: Path) -> None:
    source = Path(__file__).with_name("ring.cpp")
    subprocess.run(["c++", "-O3", "-shared", "-fPIC", "-o", str(folder / "ring.so"), str(source)], check=True)


def messages(size: int) -> int:
    return max(8, min(400, (96 << 20) // size))


def round_trips(size: int) -> int:
    return max(3, min(200, (16 << 20) // size))


@dataclass
class Lane:
    """An engine with tags that are never used twice."""

    engine: Engine
    helps: bool
    """Whether the waiting thread moves messages, or only the progress thread does."""
    buffers: list[torch.Tensor] = field(
        default_factory=lambda: [torch.zeros(max(SIZES), dtype=torch.uint8) for _ in range(WINDOW)]
    )
    step: int = 0

    def _wait(self, handle: Any) -> None:
        if not self.helps:
            while not handle.done():
                time.sleep(0)
        handle.wait()

    def one_way(self, size: int) -> float:
        engine, count = self.engine, messages(size)
        self.step += 1
        dist.barrier()
        start = time.perf_counter()
        handles: list[Any] = []
        for i in range(count):
            if len(handles) == WINDOW:
                self._wait(handles.pop(0))
            buffer, tag = self.buffers[i % WINDOW][:size], Tag(1, microbatch=i, step=self.step)
            handles.append(engine.isend(buffer, 1, tag) if engine.rank == 0 else engine.irecv(buffer, 0, tag))
        for handle in handles:
            self._wait(handle)
        self._answer()
        return (time.perf_counter() - start) / count

    def _answer(self) -> None:
        tag = Tag(2, step=self.step)
        if self.engine.rank == 0:
            self._wait(self.engine.irecv(Spec((1,), torch.uint8), 1, tag))
        else:
            self._wait(self.engine.isend(torch.zeros(1, dtype=torch.uint8), 0, tag))

    def half_round_trip(self, size: int) -> float:
        engine, count, buffer = self.engine, round_trips(size), self.buffers[0][:size]
        other = 1 - engine.rank
        self.step += 1
        dist.barrier()
        start = time.perf_counter()
        for i in range(count):
            tag = Tag(3, microbatch=i, step=self.step)
            receive = engine.irecv(self.buffers[1][:size], other, tag)
            if engine.rank == 1:
                self._wait(receive)
            self._wait(engine.isend(buffer, other, tag))
            if engine.rank == 0:
                self._wait(receive)
        return (time.perf_counter() - start) / count / 2


class Gloo:
    """torch.distributed's own messages."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.buffers = [torch.zeros(max(SIZES), dtype=torch.uint8) for _ in range(WINDOW)]

    def _post(self, buffer: torch.Tensor) -> Any:
        return dist.isend(buffer, 1) if self.rank == 0 else dist.irecv(buffer, 0)

    def one_way(self, size: int) -> float:
        count = messages(size)
        dist.barrier()
        start = time.perf_counter()
        handles: list[Any] = []
        for i in range(count):
            if len(handles) == WINDOW:
                handles.pop(0).wait()
            handles.append(self._post(self.buffers[i % WINDOW][:size]))
        for handle in handles:
            handle.wait()
        answer = torch.zeros(1)
        dist.recv(answer, 1) if self.rank == 0 else dist.send(answer, 0)
        return (time.perf_counter() - start) / count

    def half_round_trip(self, size: int) -> float:
        count, buffer = round_trips(size), self.buffers[0][:size]
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            for turn in range(2):
                dist.send(buffer, 1 - turn) if turn == self.rank else dist.recv(buffer, turn)
        return (time.perf_counter() - start) / count / 2


def contenders(rank: int, cores: Cores, store: Any) -> Iterator[tuple[str, str, Seconds]]:
    """(measure, name, seconds a message)."""
    gloo = Gloo(rank)
    yield "one way", "ring cached", cores.one_way(False)
    yield "one way", "ring streaming", cores.one_way(True)
    yield "one way", "gloo", gloo.one_way
    yield "half round trip", "ring", cores.half_round_trip
    yield "half round trip", "gloo", gloo.half_round_trip
    for name, lanes, helps in (("shm", "shm", True), ("shm unaided", "shm", False), ("tcp", "tcp", True)):
        config = Config(lanes=(lanes,), require=(lanes,))  # type: ignore[arg-type]
        engine = Engine(rank, 2, store, job=name, config=config)
        engine.connect([1 - rank])
        lane = Lane(engine, helps)
        yield "one way", name, lane.one_way
        yield "half round trip", name, lane.half_round_trip


def run_rank(rank: int, folder: str, port: int, samples_wanted: int, seconds: float) -> None:
    """One of the two processes. Rank 0 writes the samples to `folder`/samples.pt."""
    torch.set_num_threads(1)
    take_precedence()
    store = TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    cores = Cores(rank, Path(folder))
    everyone = list(contenders(rank, cores, PrefixStore("bench", store)))
    if (os.cpu_count() or 1) > 1:  # this thread alone: those of gloo and of the engines run where they like
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    samples: Samples = defaultdict(list)
    end = time.monotonic() + seconds
    for size in SIZES * 1000:
        for measure, name, action in everyone:
            sample(cores, samples, (measure, name, size), action, samples_wanted)
        over = torch.tensor([int(time.monotonic() > end)])
        dist.broadcast(over, 0)
        if over.item():
            break
    if rank == 0:
        torch.save(dict(samples), Path(folder) / "samples.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # engines have no more to say


def take_precedence() -> None:
    """Ahead of other programs where that is allowed: it is not they that are measured."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        pass


def sample(cores: Cores, samples: Samples, key: tuple[str, str, int], action: Seconds, wanted: int) -> None:
    measure, name, size = key
    before = cores.near()
    needed = [len(samples[measure, name, distance, size]) < wanted for distance in ("near", "far")]
    go = torch.tensor([int(needed[0] if before else needed[1])])
    dist.broadcast(go, 0)
    if not go.item():
        return
    took = action(size)
    if cores.near() == before:
        samples[measure, name, "near" if before else "far", size].append(took)


def measure(samples_wanted: int, seconds: float) -> dict[tuple[str, str, str, int], tuple[float, int]]:
    """Median seconds a message and number of samples, for each (measure, contender, distance, bytes)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        compile_ring(Path(folder))
        port = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False).port
        context = torch.multiprocessing.get_context("spawn")
        ranks = [context.Process(target=run_rank, args=(r, folder, port, samples_wanted, seconds)) for r in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        samples: Samples = torch.load(Path(folder) / "samples.pt", weights_only=False)
    return {key: (statistics.median(values), len(values)) for key, values in samples.items() if values}
