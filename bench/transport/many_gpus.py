"""GPU tensors between four GPUs of this host or more, all at once: in pairs, around a ring, and each with each other.

    python -m bench.transport --only many-gpus --shapes all      # each with each alone: half a minute

A GPU copies to one other at a time, at the full speed of its links. So pairs don't disturb each other, but where a GPU
has more than one partner two may copy to the same one, at half the speed each, while nobody copies to another.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from bench.transport.gpu import WINDOW, finish, spawn, timed
from megatronapp.rdma import Config, Engine, Tag, neighbours

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
MIN_GPUS = 4
MESSAGES_A_FLUSH = 64
"""Sent and received. The driver's queue takes about a thousand operations behind a stream that waits: of each message
waits, copies in pieces, and flags. With 192 the ranks held each other up."""


class Native:
    """Each round sends to all partners and receives from all; a few rounds are under way at once."""

    name = "native"

    def __init__(self, engine: Engine, partners: Sequence[int], steps: Iterator[int]) -> None:
        self._engine = engine
        self._partners = partners
        self._rounds_a_flush = MESSAGES_A_FLUSH // max(2 * len(partners), 1)
        self._steps = steps
        self._open: list[Any] = []
        shape = (WINDOW, len(partners), max(SIZES))
        self._sent, self._received = (torch.zeros(shape, dtype=torch.uint8, device="cuda") for _ in range(2))
        self.resize(max(SIZES))

    def resize(self, size: int) -> None:
        self._sending, self._receiving = parts(self._sent, size), parts(self._received, size)

    def exchange(self, count: int) -> None:
        step = next(self._steps)
        rounds: list[list[Any]] = []
        for i in range(count):
            if len(rounds) == WINDOW:
                self._await(rounds.pop(0))
            if i % self._rounds_a_flush == self._rounds_a_flush - 1:
                self._engine.flush()
            tag, place = Tag(0, microbatch=i, round=step), i % WINDOW
            rounds.append(
                [
                    self._engine.irecv(self._receiving[place][j], partner, tag)
                    for j, partner in enumerate(self._partners)
                ]
            )
            sends = [
                self._engine.isend(self._sending[place][j], partner, tag) for j, partner in enumerate(self._partners)
            ]
            self._open += sends + rounds[-1]
        for handles in rounds:
            self._await(handles)

    @staticmethod
    def _await(handles: list[Any]) -> None:
        for handle in handles:
            handle.wait_stream()

    def finish(self) -> None:
        finish(self._open)


class Nccl:
    name = "nccl"

    def __init__(self, partners: Sequence[int]) -> None:
        self._partners = partners
        shape = (1, len(partners), max(SIZES))
        self._sent, self._received = (torch.zeros(shape, dtype=torch.uint8, device="cuda") for _ in range(2))
        self.resize(max(SIZES))

    def resize(self, size: int) -> None:
        (self._sending,), (self._receiving,) = parts(self._sent, size), parts(self._received, size)

    def exchange(self, count: int) -> None:
        for _ in range(count):
            operations = []
            for j, partner in enumerate(self._partners):
                operations.append(dist.P2POp(dist.isend, self._sending[j], partner))
                operations.append(dist.P2POp(dist.irecv, self._receiving[j], partner))
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    def finish(self) -> None:
        torch.cuda.synchronize()


def parts(buffers: torch.Tensor, size: int) -> list[list[torch.Tensor]]:
    """`size` bytes of each, by window and partner."""
    return [[buffer[:size] for buffer in row] for row in buffers]


def run_rank(rank: int, folder: str, port: int, world_size: int, *, chosen: Sequence[str]) -> None:
    torch.cuda.set_device(rank)
    store = TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=world_size, store=store)
    torch.zeros(1, device="cuda")
    engine = Engine(rank, world_size, PrefixStore("bench", store), config=Config(require=("cuda_ipc",)))
    engine.connect(range(world_size))
    # In turns: were all to begin with the same one, its links would be what is measured.
    others = [(rank + turn) % world_size for turn in range(1, world_size)]
    beside = neighbours(range(world_size), rank)
    partners_in = {
        "pairs": [rank ^ 1] if rank ^ 1 < world_size else [],
        "ring": [other for other in others if other in beside],
        "all": others,
    }
    found: dict[tuple[str, str, int], float] = {}
    steps = itertools.count(1)
    for shape, partners in ((shape, partners_in[shape]) for shape in chosen):
        for way in (Native(engine, partners, steps), Nccl(partners)):
            for size in SIZES:
                way.resize(size)
                seconds = timed(way.exchange, way.finish, size) / max(len(partners), 1)
                found[shape, way.name, size] = seconds
                if rank == 0:
                    print(f"{shape}: {way.name}, {size >> 10} KiB, {size / seconds / 1e9:.2f} GB/s", file=sys.stderr)
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    engine.close()
    dist.destroy_process_group()


def report(world_size: int, shapes: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(partial(run_rank, chosen=shapes), folder, world_size)
        found: dict[tuple[str, str, int], float] = torch.load(Path(folder) / "found.pt", weights_only=False)
    print(f"\n{world_size} GPUs at once, GB/s that each one sends, both ways: pairs, a ring, all with all others")
    print(f"{'':10}" + "".join(f"{shape:>30}" for shape in shapes))
    print(f"{'':10}" + "".join(f"{text:>10}" for text in ("native", "nccl", "/nccl") * len(shapes)))
    for size in SIZES:
        cells = []
        for shape in shapes:
            native, nccl = (size / found[shape, name, size] / 1e9 for name in ("native", "nccl"))
            cells += [native, nccl, native / nccl]
        print(f"{size >> 10:6} KiB" + "".join(f"{cell:>10.2f}" for cell in cells))
