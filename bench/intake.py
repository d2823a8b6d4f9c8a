"""What taking in detail costs the collector: events per CPU-second of its process, and bytes per event.

    python -m bench.intake [--ranks 32] [--messages 20] [--events 13000] [--detect] [--without-store]

Clients send ready-made batches over loopback, all ranks step by step together; the collector, with journal and store on
a real disk, is a process of its own, and the CPU time of all its threads is what counts: an event per CPU-second is
what one core would take in for good, if the threads had it to themselves. One summary goes with each batch. 13,000
events are a step of 64 microbatches at granularity full, and one message; the fewer there are, the more each message's
own cost counts. With --detect the detector runs in that process and reads the bus; without, a follower parses what is
on it. Goals: 5 M events per CPU-second, 21 bytes per event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from grpc import aio
from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.reader import Snapshot
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Store
from megatronapp.core import logging
from megatronapp.core.auth import AllowAll
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.trace.columns import fill_spans, fill_summary
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import trace_pb2

GOAL_EVENTS_PER_SECOND = 5e6
GOAL_BYTES_PER_EVENT = 21
PARTS = ("norm", "qkv", "core_attention", "attention_projection", "norm", "mlp_fc1", "mlp_activation", "mlp_fc2")
STEP_NS = 10_000_000_000
COMPUTE, P2P, COLLECTIVE = trace_pb2.SPAN_KIND_COMPUTE, trace_pb2.SPAN_KIND_P2P, trace_pb2.SPAN_KIND_COLLECTIVE


def detail(step: int, count: int, seed: int) -> trace_pb2.TraceBatch:
    """A step of a GPU rank at granularity full: layers and their parts, a tensor-parallel collective after every
    fourth part, a message after every 64th. Ranks end together, to a microsecond, what began apart."""
    together, rng = np.random.default_rng(0), np.random.default_rng(seed + 1)
    names = [*dict.fromkeys(PARTS), "all_reduce", "forward_send"]
    index = np.arange(count)
    kind = np.where(index % 64 == 63, P2P, np.where(index % 5 == 4, COLLECTIVE, COMPUTE))
    part = np.array([names.index(name) for name in PARTS])[index % len(PARTS)]
    longest = together.lognormal(11, 0.3, count)
    end = step * STEP_NS + np.cumsum(longest + 1_000).astype(np.int64) + rng.integers(-500, 500, count)
    duration = (longest * rng.uniform(0.8, 1.0, count)).astype(np.int64)
    start = end - duration
    communicates = kind != COMPUTE
    batch = trace_pb2.TraceBatch(step=step, names=names, last=True)
    fill_spans(
        batch,
        {
            "start_ns": start,
            "duration_ns": duration,
            "enqueue_ns": start - rng.integers(10_000, 2_000_000, count),
            "name": np.where(kind == COLLECTIVE, len(names) - 2, np.where(kind == P2P, len(names) - 1, part)),
            "kind": kind,
            "stream": np.where(communicates, 2, 1),
            "microbatch": index // 256,
            "layer": index // 8 % 32 + 1,
            "communicator": kind == COLLECTIVE,
            "sequence": np.where(communicates, index + step * count, 0),
            "peer": np.where(kind == P2P, 1, -1),
            "bytes": np.where(communicates, 1 << 25, 0),
        },
    )
    return batch


def summary(step: int) -> trace_pb2.StepSummary:
    rows = 12
    body = trace_pb2.StepSummary(step=step, names=["forward", "backward"], traced=True, duration_ns=10**9)
    body.start_ns = step * STEP_NS
    fill_summary(
        body, {"name": np.arange(rows) % 2, "kind": np.full(rows, COMPUTE), "duration_sum_ns": np.full(rows, 10**7)}
    )
    return body


def hello(rank: int, ranks: int) -> trace_pb2.TraceMessage:
    who = trace_pb2.Identity(run="bench", job="bench/intake", attempt=1, rank=rank, incarnation=rank + 1)
    place = trace_pb2.Placement(node=f"node-{rank // 8}", data=rank, host_unix_ns=time.time_ns(), gpu_uuid=str(rank))
    place.sizes.world = place.sizes.data = ranks
    place.sizes.pipeline = place.sizes.tensor = 1
    world = trace_pb2.Communicator(index=1, id="tp:all", kind="tp", ranks=range(ranks))
    body = trace_pb2.Hello(identity=who, placement=place, communicators=[world], device=trace_pb2.DEVICE_CUDA)
    body.schedule.microbatches = 8
    return trace_pb2.TraceMessage(hello=body)


class Rank:
    """One rank's stream and what it sends."""

    def __init__(self, address: str, rank: int, options: argparse.Namespace) -> None:
        channel: Any = aio.insecure_channel(address)  # the stubs know only of calls with serializers
        self._channel = channel
        self._call = channel.stream_stream(
            "/megatronapp.v1.TraceIngest/Stream", response_deserializer=trace_pb2.TraceReply.FromString
        )()
        self._hello = hello(rank, options.ranks)
        batch = detail(0, options.events, rank)
        self._body, self._base_ns = batch.SerializeToString(), batch.base_ns

    async def step(self, step: int) -> None:
        if step == 1:
            await self._call.write(self._hello.SerializeToString())
        # Fields may be repeated in a message, and the last one counts: that makes a new step of ready bytes.
        moved = trace_pb2.TraceBatch(step=step, base_ns=self._base_ns + step * STEP_NS).SerializeToString()
        await self._call.write(_message(2 * step - 1, 3, self._body + moved))
        await self._call.write(_message(2 * step, 4, summary(step).SerializeToString()))

    async def finish(self, seq: int) -> None:
        """Wait for the last acknowledgement."""
        await self._call.done_writing()
        while (reply := await self._call.read()) is not aio.EOF:  # type: ignore[attr-defined]
            if reply.ack.seq == seq:
                break
        await self._channel.close()


def _message(seq: int, field: int, body: bytes) -> bytes:
    head = trace_pb2.TraceMessage(seq=seq).SerializeToString() + bytes([field << 3 | 2])
    size = len(body)
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + body


async def serve(folder: Path, options: argparse.Namespace) -> None:
    """The collector, and who reads its bus, until stdin closes; tells its port, then the CPU seconds it took."""
    bus, registry = MemoryBus(), CollectorRegistry()
    later: dict[str, Any] = (
        {"flush_seconds": 1e6, "flush_steps": 10**9, "flush_bytes": 1 << 40} if options.without_store else {}
    )
    settings = CollectorSettings(grpc_port=0, data_dir=folder, fsync=options.fsync, **later)
    collector = Collector(settings, bus, registry, AllowAll())
    await collector.start()
    reader = await _detector(bus) if options.detect else asyncio.create_task(_subscribe(bus))
    before = time.process_time()
    print(collector.port, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    taken = time.process_time() - before
    await collector.stop()
    stored = sum(path.stat().st_size for path in folder.glob("store/**/spans-*.parquet"))
    whole = time.process_time() - before
    measured = {
        "cpu_seconds": taken,
        "cpu_seconds_with_last_store": whole,
        "stored_bytes": stored,
        "cpu_seconds_to_read": read_seconds(folder / "store"),
    }
    print(json.dumps(measured), flush=True)
    if isinstance(reader, asyncio.Task):
        reader.cancel()
    else:
        await reader.stop()


def read_seconds(folder: Path) -> float:
    """CPU time to read all spans back from the store, as a query does before it answers."""
    store = Store(folder)
    parts = store.parts(("bench", 1), "spans")
    snapshot = Snapshot(store, 0, max(part.last for part in parts), frozenset(), parts, [], [], {})
    before = time.process_time()
    for _ in snapshot.spans():
        pass
    return time.process_time() - before


async def _subscribe(bus: MemoryBus) -> None:
    async for messages in bus.follow(Topic.STEPS):
        for message in messages:
            trace_pb2.RankMessage.FromString(message.value)


async def _detector(bus: MemoryBus) -> Detector:
    detector = Detector(DetectorSettings(), bus, CollectorRegistry())
    await detector.start()
    return detector


async def drive(port: int, options: argparse.Namespace) -> float:
    ranks = [Rank(f"127.0.0.1:{port}", rank, options) for rank in range(options.ranks)]
    begun = time.monotonic()
    for step in range(1, options.messages + 1):
        await asyncio.gather(*(rank.step(step) for rank in ranks))
    await asyncio.gather(*(rank.finish(2 * options.messages) for rank in ranks))
    return time.monotonic() - begun


def measure(options: argparse.Namespace) -> dict[str, float]:
    flags = [f"--{name}={getattr(options, name)}" for name in ("ranks", "messages", "events")]
    flags += [f"--{name.replace('_', '-')}" for name in ("detect", "fsync", "without_store") if getattr(options, name)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, "-m", "bench.intake", "--serve", folder, *flags]
        quiet = os.environ | {"OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=quiet
        ) as server:
            assert server.stdin
            assert server.stdout
            seconds = asyncio.run(drive(int(server.stdout.readline()), options))
            server.stdin.close()
            server_side = json.loads(server.stdout.readline())
    events = options.ranks * options.messages * options.events
    body = detail(1, options.events, 0).SerializeToString()
    return {
        "events": events,
        "events_per_cpu_second": events / server_side["cpu_seconds"],
        "events_per_cpu_second_with_last_store": events / server_side["cpu_seconds_with_last_store"],
        "events_read_per_cpu_second": events / server_side["cpu_seconds_to_read"],
        "events_per_second": events / seconds,
        "bytes_per_event": len(body) / options.events,
        "bytes_per_event_zstd": len(zstandard.compress(body, 3)) / options.events,
        "bytes_per_event_stored": server_side["stored_bytes"] / events,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.intake")
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--messages", type=int, default=20, help="steps per rank")
    parser.add_argument("--events", type=int, default=13_000, help="spans per step and rank")
    parser.add_argument("--detect", action="store_true", help="with the detector in the same process")
    parser.add_argument("--fsync", action="store_true", help="journal safe against power loss")
    parser.add_argument("--without-store", action="store_true", help="store at the very end only")
    parser.add_argument("--folder", type=Path, default=None, help="where journal and store lie")
    parser.add_argument("--serve", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        logging.configure("warning")
        asyncio.run(serve(options.serve, options))
        return 0
    goals = {"events_per_cpu_second": GOAL_EVENTS_PER_SECOND, "bytes_per_event_zstd": GOAL_BYTES_PER_EVENT}
    for name, value in measure(options).items():
        print(f"{name:40} {value:16,.1f}" + (f"   goal {goals[name]:,.0f}" if name in goals else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
