"""How many viewers of MegaScope one gateway serves, and what a stalled one costs the others.

    python -m bench.scope_viewers                              # 100 viewers, 64 KiB, 10 frames a second, for 20 s
    python -m bench.scope_viewers --viewers 200 --stalled 1

The gateway is a process of its own; one rank sends frames whose bytes are ready, the viewers are all in one other
process, so that on two cores they disturb the gateway as browsers elsewhere would not. With `--stalled` so many viewers
take nothing from their sockets, though they granted credit for all. `delay` is from the rank's send to the viewer's
receipt. Goals: 100 viewers get 9.5 frames a second each at 400 MiB; the others' p95 with a stalled viewer is at most
1.1 times that without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket as sockets
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect

from megatronapp.core.scope.frame import pack
from megatronapp.core.scope.quantize import Values, encode
from megatronapp.core.scope.sites import Axis, Site
from megatronapp.v1 import scope_pb2, trace_pb2
from tests.support.scope_pods import FakeRank, attached

RUN = "run-1"
CHANNELS = 4096
JOIN = json.dumps({"join": {"client": "bench", "run": RUN}})
PING_SECONDS = 10.0


@dataclass
class Measured:
    frames: int = 0
    delays_ms: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scope_viewers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--stalled", type=int, default=0, help="viewers beside them that read nothing")
    parser.add_argument("--kib", type=int, default=64, help="of a frame's payload")
    parser.add_argument("--fps", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(argv)
    asyncio.run(_measure(options))
    return 0


async def _measure(options: argparse.Namespace) -> None:
    rows = options.kib * 1024 // CHANNELS
    site = Site("resid_post", (Axis("token", rows), Axis("chan", CHANNELS)), layers=(0,))
    placement = trace_pb2.Placement(node="bench", sizes=trace_pb2.ParallelSizes(world=1))
    rank = FakeRank(0, [site], placement, run=RUN)
    with tempfile.TemporaryDirectory() as folder:
        async with _gateway(options, folder) as (process, port, grpc_port), attached(f"127.0.0.1:{grpc_port}", [rank]):
            results = [Measured() for _ in range(options.viewers)]
            viewing = [asyncio.create_task(_view(port, result)) for result in results]
            stalled = [asyncio.create_task(_stall(port, options)) for _ in range(options.stalled)]
            await rank.asked(1)
            await asyncio.sleep(1 + options.viewers / 50)
            sent, cpu_seconds = await _send(rank, rows, options, process)
            for task in (*viewing, *stalled):
                task.cancel()
            await asyncio.gather(*viewing, *stalled, return_exceptions=True)
            _print(results, sent, cpu_seconds, process.memory_info().rss, options)


async def _send(rank: FakeRank, rows: int, options: argparse.Namespace, process: psutil.Process) -> tuple[int, float]:
    """Frames at the wanted rate; returns how many, and the gateway's processor seconds meanwhile."""
    values = np.random.default_rng(0).normal(size=(rows, CHANNELS)).astype(np.float32)
    tap = rank.demand.taps[0]
    frame = replace(encode(Values(values), tap.quantizer), subscription=tap.id, layer=0)
    began, before = time.perf_counter(), sum(process.cpu_times()[:2])
    sent = 0
    while (now := time.perf_counter() - began) < options.seconds:
        data = pack(replace(frame, step=sent, captured_unix_us=time.time_ns() // 1000))
        await rank.send(frame=scope_pb2.ScopeFrame(tap=tap.id, frame=data))
        sent += 1
        await asyncio.sleep(max(sent / options.fps - now, 0.0))
    await asyncio.sleep(1.0)
    return sent, sum(process.cpu_times()[:2]) - before


async def _view(port: int, result: Measured) -> None:
    async with _joined(port, 2) as socket:
        credit = json.dumps({"credit": {"id": 1, "frames": 1}})
        async for data in socket:
            if isinstance(data, bytes):
                (captured_us,) = struct.unpack_from("<Q", data, 16)
                result.frames += 1
                result.delays_ms.append(time.time_ns() / 1e6 - captured_us / 1e3)
                await socket.send(credit)


async def _stall(port: int, options: argparse.Namespace) -> None:
    async with _joined(port, 4000) as socket:
        socket.transport.pause_reading()
        await asyncio.sleep(10 * options.seconds)


@asynccontextmanager
async def _joined(port: int, granted: int) -> AsyncIterator[ClientConnection]:
    address = f"ws://127.0.0.1:{port}/api/v1/scope"
    async with connect(address, subprotocols=["mscope.v1"], max_size=None, compression=None) as socket:  # type: ignore[list-item]
        await socket.send(JOIN)
        subscription = {"id": 1, "expression": "layers[0].resid_post", "credits": granted, "max_fps": 1000}
        await socket.send(json.dumps({"subscribe": subscription}))
        yield socket


@asynccontextmanager
async def _gateway(options: argparse.Namespace, folder: str) -> AsyncIterator[tuple[psutil.Process, int, int]]:
    """A process that serves; its port and gRPC port."""
    with sockets.create_server(("127.0.0.1", 0)) as one, sockets.create_server(("127.0.0.1", 0)) as other:
        port, grpc_port = one.getsockname()[1], other.getsockname()[1]
    settings = {
        "PORT": port,
        "GRPC_PORT": grpc_port,
        "HTTP_PORT": 0,
        "QUARANTINE_DIR": folder,
        "SCOPE_MAX_VIEWERS": options.viewers + options.stalled,
        "SCOPE_MAX_FPS": 1000,
        "LOG_LEVEL": "error",
    }
    environment = os.environ | {f"MEGATRONAPP_GATEWAY_{name}": str(value) for name, value in settings.items()}
    child = subprocess.Popen([sys.executable, "-m", "megatronapp.gateway"], env=environment)
    try:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", grpc_port)
                writer.close()
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield psutil.Process(child.pid), port, grpc_port
    finally:
        child.terminate()
        child.wait()


def _print(
    results: Sequence[Measured], sent: int, cpu_seconds: float, rss_bytes: int, options: argparse.Namespace
) -> None:
    rates = [result.frames / options.seconds for result in results]
    delays = np.concatenate([result.delays_ms for result in results if result.delays_ms] or [[np.nan]])
    p50, p95 = np.percentile(delays, (50, 95))
    print(f"{options.viewers} viewers + {options.stalled} stalled, {options.kib} KiB, {sent} frames sent")
    print(f"frames a second of a viewer   least {min(rates):.2f}, mean {np.mean(rates):.2f}")
    print(f"delay                         p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    print(f"gateway                       {cpu_seconds / options.seconds:.2f} of a core, {rss_bytes / 2**20:.0f} MiB")


if __name__ == "__main__":
    sys.exit(main())
