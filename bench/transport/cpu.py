"""CPU tensors between two ranks of this host: the lanes, gloo, and a bare ring, side by side.

The cores of a virtual machine move: two samples of one thing can differ by five for that alone. So each sample is taken
between two probes of the cores' distance and counts only if both agree, as near or as far.

What is called "first" runs under SCHED_FIFO: its threads go before those of all other programs, as if the machine were
quiet, and the measuring one before those that it starts. It is compared only with what runs so too. gloo can't: its
thread would never get a core beside a waiting one.

Receives are posted before a measurement begins, as a schedule posts those of a whole step. "Watched" and "unaided" are
moved by the progress thread alone. Where each rank has two cores the measuring thread watches the message ("watched");
and it sleeps until the engine's descriptor says that something has ended ("unaided"). What it costs to wake a thread is
seen in the ring "asleep", whose reader sleeps until the writer wakes it.
"""

from __future__ import annotations

import ctypes
import os
import select
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from megatronapp.rdma import Config, Engine, Spec, Tag

NEAR_BELOW_NS = 120.0
PROBE_ROUNDS = 2000
WINDOW = 4
WARM_BYTES = 1 << 20
CORES_TO_WATCH = 4
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
        self._library.meet.restype = None
        path = folder / "ring.memory"
        if rank == 0:
            path.write_bytes(bytes(self._library.shared_bytes()))
        dist.barrier()
        descriptor = os.open(path, os.O_RDWR)
        assert self._library.open_shared(descriptor) == 0
        os.close(descriptor)
        self._buffers = written(WINDOW * max(SIZES))

    def meet(self) -> None:
        """Both ranks leave it together."""
        self._library.meet(self.rank)

    def near(self) -> bool:
        return float(self._library.distance_ns(self.rank, PROBE_ROUNDS)) < NEAR_BELOW_NS

    def one_way(self, streaming: bool) -> Seconds:
        def measure(size: int) -> float:
            address = ctypes.c_void_p(self._buffers.data_ptr())
            length, count = ctypes.c_size_t(size), messages(size)
            return float(self._library.one_way(self.rank, address, length, WINDOW, count, int(streaming)))

        return measure

    def half_round_trip(self, asleep: bool) -> Seconds:
        def measure(size: int) -> float:
            address = ctypes.c_void_p(self._buffers.data_ptr())
            length, count = ctypes.c_size_t(size), round_trips(size)
            return float(self._library.half_round_trip(self.rank, address, length, count, int(asleep)))

        return measure


def compile_ring(folder: Path) -> None:
    source = Path(__file__).with_name("ring.cpp")
    subprocess.run(["c++", "-O3", "-shared", "-fPIC", "-o", str(folder / "ring.so"), str(source)], check=True)


def written(size: int) -> torch.Tensor:
    """Memory of its own: what was never written is one page of zeros, which costs nothing to read."""
    return torch.ones(size, dtype=torch.uint8)


def messages(size: int) -> int:
    return max(8, min(400, (96 << 20) // size))


def round_trips(size: int) -> int:
    return max(3, min(200, (16 << 20) // size))


class Waits(Enum):
    """What the thread does that waits for a message."""

    HELPING = ""
    """It moves messages itself."""
    WATCHING = " watched"
    SLEEPING = " unaided"


@dataclass
class Lane:
    """An engine with tags that are never used twice."""

    engine: Engine
    meet: Callable[[], None]
    waits: Waits
    buffers: list[torch.Tensor] = field(default_factory=lambda: [written(max(SIZES)) for _ in range(WINDOW)])
    step: int = 0
    news: select.epoll = field(default_factory=select.epoll)

    def __post_init__(self) -> None:
        if self.waits is Waits.SLEEPING:
            self.news.register(self.engine.fileno(), select.EPOLLIN)

    def _wait(self, handle: Any) -> None:
        if self.waits is Waits.WATCHING:
            while not handle.done():
                pass
        elif self.waits is Waits.SLEEPING:
            while not handle.done():
                self.news.poll()
                if not handle.done():
                    self.engine.poll()  # of something else: it is heard, and the descriptor quiet again
        handle.wait()

    def one_way(self, size: int) -> float:
        engine, count = self.engine, messages(size)
        buffers, tags = [buffer[:size] for buffer in self.buffers], self._tags(1, count)
        handles: list[Any] = []
        if engine.rank == 1:
            handles = [engine.irecv(buffers[i % WINDOW], 0, tag) for i, tag in enumerate(tags)]
        self.meet()
        start = time.perf_counter()
        if engine.rank == 0:
            for i, tag in enumerate(tags):
                if len(handles) == WINDOW:
                    self._wait(handles.pop(0))
                handles.append(engine.isend(buffers[i % WINDOW], 1, tag))
        for handle in handles:
            self._wait(handle)
        self._answer()
        return (time.perf_counter() - start) / count

    def _tags(self, kind: int, count: int) -> list[Tag]:
        self.step += 1
        return [Tag(kind, microbatch=i, round=self.step) for i in range(count)]

    def _answer(self) -> None:
        tag = Tag(2, round=self.step)
        if self.engine.rank == 0:
            self._wait(self.engine.irecv(Spec((1,), torch.uint8), 1, tag))
        else:
            self._wait(self.engine.isend(torch.zeros(1, dtype=torch.uint8), 0, tag))

    def half_round_trip(self, size: int) -> float:
        engine, count = self.engine, round_trips(size)
        first, other = engine.rank == 0, 1 - engine.rank
        sent, received = self.buffers[0][:size], self.buffers[1][:size]
        tags = self._tags(3, count)
        receives = [engine.irecv(received, other, tag) for tag in tags]
        sends: list[Any] = []
        self.meet()
        start = time.perf_counter()
        for i, receive in enumerate(receives):
            if not first:
                self._wait(receive)
            sends.append(engine.isend(sent, other, tags[i]))
            if first:
                self._wait(receive)
        took = time.perf_counter() - start
        for send in sends:
            self._wait(send)
        return took / count / 2


class Gloo:
    """torch.distributed's own messages."""

    def __init__(self, rank: int, meet: Callable[[], None]) -> None:
        self.rank = rank
        self.meet = meet
        self.buffers = [written(max(SIZES)) for _ in range(WINDOW)]

    def _post(self, buffer: torch.Tensor) -> Any:
        return dist.isend(buffer, 1) if self.rank == 0 else dist.irecv(buffer, 0)

    def one_way(self, size: int) -> float:
        count = messages(size)
        self.meet()
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
        self.meet()
        start = time.perf_counter()
        for _ in range(count):
            for turn in range(2):
                dist.send(buffer, 1 - turn) if turn == self.rank else dist.recv(buffer, turn)
        return (time.perf_counter() - start) / count / 2


@dataclass
class Contender:
    measure: str
    name: str
    action: Seconds
    first: bool
    """Runs before all other programs."""


def contenders(cores: Cores, store: Any, *, may_be_first: bool) -> Iterator[Contender]:
    yield Contender("one way", "ring cached", cores.one_way(False), may_be_first)
    yield Contender("one way", "ring streaming", cores.one_way(True), may_be_first)
    yield Contender("half round trip", "ring", cores.half_round_trip(False), may_be_first)
    yield Contender("half round trip", "ring asleep", cores.half_round_trip(True), may_be_first)
    gloo = Gloo(cores.rank, cores.meet)
    yield Contender("one way", "gloo", gloo.one_way, False)
    yield Contender("half round trip", "gloo", gloo.half_round_trip, False)
    for first in (False, True) if may_be_first else (False,):
        for lane in ("shm", "tcp"):
            for waits in ways_to_wait() if lane == "shm" else (Waits.HELPING,):
                name = lane + waits.value + " first" * first
                with first_in_line(1) if first else nullcontext():  # the progress thread is as the one that starts it
                    config = Config(lanes=(lane,), require=(lane,))
                    engine = Engine(cores.rank, 2, store, job=name, config=config)
                engine.connect([1 - cores.rank])
                messages = Lane(engine, cores.meet, waits)
                yield Contender("one way", name, messages.one_way, first)
                yield Contender("half round trip", name, messages.half_round_trip, first)


def ways_to_wait() -> tuple[Waits, ...]:
    """Two threads that never sleep are two ranks' too many for less than four cores."""
    return tuple(Waits) if (os.cpu_count() or 1) >= CORES_TO_WATCH else (Waits.HELPING, Waits.SLEEPING)


@contextmanager
def first_in_line(priority: int = 2) -> Iterator[None]:
    """This thread, and those that it starts meanwhile, before all others. Raises PermissionError."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def may_be_first() -> bool:
    try:
        with first_in_line():
            return True
    except PermissionError:
        return False


def run_rank(rank: int, folder: str, port: int, samples_wanted: int, seconds: float) -> None:
    """One of the two processes. Rank 0 writes the samples to `folder`/samples.pt."""
    torch.set_num_threads(1)
    take_precedence()
    store = TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    cores = Cores(rank, Path(folder))
    everyone = list(contenders(cores, PrefixStore("bench", store), may_be_first=may_be_first()))
    if (os.cpu_count() or 1) > 1:  # this thread alone: those of gloo and of the engines run where they like
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    samples: Samples = defaultdict(list)
    end = time.monotonic() + seconds
    for size in SIZES * 1000:
        for contender in everyone:
            sample(cores, samples, contender, size, samples_wanted)
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


def sample(cores: Cores, samples: Samples, contender: Contender, size: int, wanted: int) -> None:
    order: AbstractContextManager[None] = first_in_line() if contender.first else nullcontext()
    before = cores.near()
    cells = [samples[contender.measure, contender.name, distance, size] for distance in ("near", "far")]
    mine = cells[0] if before else cells[1]
    go = torch.tensor([int(len(mine) < wanted)])
    dist.broadcast(go, 0)
    if not go.item():
        return
    with order:
        if size <= WARM_BYTES:
            contender.action(size)  # what ran before has left its own things in the caches
        took = contender.action(size)
    if cores.near() == before:
        mine.append(took)


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
