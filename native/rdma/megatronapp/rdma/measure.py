"""How fast a lane is here: two processes of this host, for a moment."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from megatronapp.rdma.config import Config, LaneName
from megatronapp.rdma.engine import Engine
from megatronapp.rdma.tag import Tag

BULK_BYTES = 64 << 20
BULKS = 6
SMALL_BYTES = 4 << 10
ROUND_TRIPS = 300
SECONDS = 60.0


class Speed(NamedTuple):
    bytes_per_second: float
    half_round_trip_seconds: float


def speed(lane: LaneName) -> Speed:
    """Of one lane, with 64 MiB one way and 4 KiB to and fro. Raises RuntimeError when a process ends early."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, lane, str(Path(folder) / "store"), sender)) for rank in range(2)
        ]
        try:
            for process in ranks:
                process.start()
            if not receiver.poll(SECONDS):
                raise RuntimeError(f"lane {lane} was not measured within {SECONDS:g} s")
            return Speed(*receiver.recv())
        finally:
            for process in ranks:
                process.join(5)
                process.kill()
                process.join()


def _rank(rank: int, lane: LaneName, store: str, result: Connection) -> None:
    torch.set_num_threads(1)
    device = f"cuda:{rank}" if lane == "cuda_ipc" else "cpu"
    if lane == "cuda_ipc":
        torch.cuda.set_device(rank)
    lanes: tuple[LaneName, ...] = ("shm", "cuda_ipc") if lane == "cuda_ipc" else (lane,)
    with Engine(rank, 2, store, config=Config(lanes=lanes, require=(lane,))) as engine:
        engine.connect([1 - rank])
        bulk = _one_way(engine, device)
        small = _to_and_fro(engine, device)
        if rank == 1:
            result.send((BULK_BYTES / bulk, small))


def _one_way(engine: Engine, device: str) -> float:
    """Seconds a message; the first is not counted."""
    buffers = [torch.zeros(BULK_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    start = 0.0
    for i in range(BULKS + 1):
        tag = Tag(1, microbatch=i)
        if engine.rank == 0:
            engine.isend(buffers[i % 2], 1, tag).wait()
        else:
            engine.irecv(buffers[i % 2], 0, tag).wait()
        if i == 0:
            start = time.perf_counter()
    return (time.perf_counter() - start) / BULKS


def _to_and_fro(engine: Engine, device: str) -> float:
    sent, received = (torch.zeros(SMALL_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    other = 1 - engine.rank
    start = time.perf_counter()
    for i in range(ROUND_TRIPS):
        receive = engine.irecv(received, other, Tag(2, microbatch=i))
        if engine.rank == 1:
            receive.wait()
        engine.isend(sent, other, Tag(2, microbatch=i)).wait()
        receive.wait()
    return (time.perf_counter() - start) / ROUND_TRIPS / 2
