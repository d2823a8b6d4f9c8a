"""What judging one large job costs: the processor share and the peak memory of a real detector on a real Redis, fed
with the encoded messages of all ranks: a heartbeat a second of each, and each step's summary. Goals at 16,384 ranks and
steps of 4 s: half a core, 1 GiB.

The job is played as fast as the detector reads, in time of its own, so that the share is processor time over the time
that the messages stand for.

python -m bench.detector_footprint [--ranks 16384] [--step-seconds 4] [--steps 12]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.scale.job import NS, Job, Spec, Step
from bench.scale.layout import of_world
from bench.scale.protocol import Speaker
from bench.scale.scenarios import QUIET
from bench.scale.tables import RowBook
from megatronapp.core.bus import Topic
from megatronapp.core.bus.redis import RedisBus
from megatronapp.v1 import trace_pb2
from tests.support.redis import RedisServer

WARM_UP = 6
"""Steps until GPU ranks are judged, in which what is kept of each has come."""
PATIENCE_SECONDS = 120.0


class Player:
    """The messages of a job, a step at a time: Hellos with the first."""

    def __init__(self, job: Job) -> None:
        self._job, self._speaker = job, Speaker(job, RowBook(job.families))
        self._beat_unix_ns = 0
        """When the next heartbeats are due."""

    def hellos(self) -> Iterator[bytes]:
        for rank in range(self._job.layout.world):
            yield self._wrapped(rank, self._speaker.hello(rank, 1), self._job.clock_ns)

    def step(self) -> Iterator[bytes]:
        """Heartbeats of each second, then the summaries."""
        step: Step = self._job.step()
        began, ended = step.began_unix_ns, int(step.ended_unix_ns.max())
        for second in range(max(began, self._beat_unix_ns), ended, NS):
            self._beat_unix_ns = second + NS
            for rank in range(self._job.layout.world):
                at = second + rank * NS // self._job.layout.world
                yield self._wrapped(rank, self._speaker.heartbeat(rank, step.number, at), at)
        for rank, message in enumerate(self._speaker.summaries(step)):
            yield self._wrapped(rank, message, ended)

    def _wrapped(self, rank: int, message: trace_pb2.TraceMessage, at: int) -> bytes:
        return self._speaker.wrapped(rank, 1, message, at).SerializeToString()


class DetectorProcess:
    def __init__(self, redis_url: str, folder: Path) -> None:
        self._port = _free_port()
        prefix = "MEGATRONAPP_DETECTOR_"
        settings = {"HTTP_PORT": str(self._port), "REDIS_URL": redis_url, "QUARANTINE_DIR": str(folder / "aside")}
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | {prefix + name: value for name, value in settings.items()}
        command = [sys.executable, "-m", "megatronapp.detector"]
        self._log = (folder / "detector.log").open("wb")
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        self._known = psutil.Process(self._process.pid)

    async def until(self, metric: str, value: float) -> None:
        """Until the metric is so large."""
        until = time.monotonic() + PATIENCE_SECONDS
        while await asyncio.to_thread(self._metric, metric) < value:
            if time.monotonic() > until:
                raise TimeoutError(f"{metric} stays below {value}")
            await asyncio.sleep(1.0)

    def _metric(self, name: str) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return -1.0
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def processor_seconds(self) -> float:
        used = self._known.cpu_times()
        return float(used.user + used.system)

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


async def measure(world: int, step_seconds: float, steps: int, redis_url: str, folder: Path) -> str:
    pp, tp = (16, 8) if world % 128 == 0 and world >= 1024 else (1, 1)
    job = Job(Spec(of_world(world, pp, tp, microbatches=32), step_seconds, QUIET), 0)
    player, bus, detector = Player(job), RedisBus(redis_url), DetectorProcess(redis_url, folder)
    try:
        await detector.until("process_start_time_seconds", 0.0)
        job.clock_ns = time.time_ns()
        await _publish(bus, job, player.hellos())
        used, messages, begun = 0.0, 0, 0
        for step in range(1, WARM_UP + steps + 1):
            if step == WARM_UP + 1:
                used, begun, messages = detector.processor_seconds(), job.clock_ns, 0
            messages += await _publish(bus, job, player.step())
            await detector.until("megatronapp_step_duration_seconds_count", step)
        used, seconds = detector.processor_seconds() - used, (job.clock_ns - begun) / NS
        return (
            f"{world:6} ranks, steps of {step_seconds:g} s: {used / seconds:.2f} of a core, "
            f"{1e6 * used / messages:.1f} µs a message, peak memory {detector.peak_bytes() / 2**20:.0f} MiB"
        )
    finally:
        detector.stop()
        await bus.close()


async def _publish(bus: RedisBus, job: Job, messages: Iterator[bytes]) -> int:
    batch = [(job.run, message) for message in messages]
    await bus.publish_all(Topic.STEPS, batch)
    return len(batch)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.detector_footprint", description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--step-seconds", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=12, help="that are measured")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(_free_port(), Path(folder))
        server.start()
        try:
            print(asyncio.run(measure(wanted.ranks, wanted.step_seconds, wanted.steps, server.url, Path(folder))))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
