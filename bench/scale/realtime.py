"""Real time: the ranks of a simulated job stream over gRPC to a real collector; a real detector reads the Redis between
them. All three are processes of their own; what is measured is what a person would see.

Ranks of a node share a connection, as their agent's do. Each sends a heartbeat a second, and each step's summary when
the step ends; a step takes as long as it says.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from grpc import aio

from bench.scale import intervals
from bench.scale.faults import Fault, What
from bench.scale.job import NS, Job, Spec, Step
from bench.scale.layout import of_world
from bench.scale.protocol import Speaker
from bench.scale.scenarios import QUIET
from bench.scale.scoring import Outcome, Score
from bench.scale.tables import RowBook
from megatronapp.core import bus
from megatronapp.core.bus import Topic
from megatronapp.core.findings import Finding
from megatronapp.v1 import findings_pb2, trace_pb2

ONSET, STEPS = 34, 46
READY_SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""For what is still on its way at the end."""


@dataclass(frozen=True)
class Measured:
    ranks: int
    step_seconds: float
    found: bool
    steps_to_page: int
    seconds_to_page: float
    page_lag_seconds: float
    """From the end of the step that made it page, on its slowest rank, to the page on the bus."""
    false_pages: int
    wrong_culprits: int
    late_seconds: float
    """By how much the simulation itself was late, at most: a number near the step's length spoils the rest."""
    processor_seconds: dict[str, float] = field(default_factory=dict)


class Processes:
    """Redis, collector and detector on free ports over a folder that is thrown away."""

    def __init__(self, folder: Path) -> None:
        self.redis_port, self.grpc_port, *http = (_free_port() for _ in range(4))
        self._http, self._folder = http, folder
        self.redis_url = f"redis://127.0.0.1:{self.redis_port}/0"
        self.all: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        plain = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.redis_port), "--save", ""]
        self._run("redis", [*plain, "--dir", str(self._folder)], {})
        service = [sys.executable, "-m"]
        prefix = "MEGATRONAPP_COLLECTOR_"
        self._run(
            "collector",
            [*service, "megatronapp.collector"],
            {
                f"{prefix}DATA_DIR": str(self._folder / "collector"),
                f"{prefix}GRPC_PORT": str(self.grpc_port),
                f"{prefix}HTTP_PORT": str(self._http[0]),
                f"{prefix}REDIS_URL": self.redis_url,
            },
        )
        prefix = "MEGATRONAPP_DETECTOR_"
        settings = {"HTTP_PORT": str(self._http[1]), "REDIS_URL": self.redis_url}
        settings["QUARANTINE_DIR"] = str(self._folder / "detector")
        self._run("detector", [*service, "megatronapp.detector"], {prefix + key: v for key, v in settings.items()})

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
            self.all[name] = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def check(self) -> None:
        """Raises RuntimeError where one has ended."""
        for name, process in self.all.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text()[-1000:]
                raise RuntimeError(f"{name} has ended: {log}")

    def processor_seconds(self) -> dict[str, float]:
        times = {name: psutil.Process(process.pid).cpu_times() for name, process in self.all.items()}
        return {name: round(used.user + used.system, 2) for name, used in times.items()}

    def stop(self) -> None:
        for process in reversed(self.all.values()):
            process.terminate()
        for process in self.all.values():
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Streams:
    """A stream a rank, a connection a node."""

    def __init__(self, port: int, job: Job) -> None:
        address, nodes = f"127.0.0.1:{port}", job.layout.nodes
        own: list[tuple[str, int]] = [("grpc.use_local_subchannel_pool", 1)]
        self._channels: list[Any] = [aio.insecure_channel(address, options=own) for _ in range(nodes)]
        self._calls = [self._open(self._channels[node]) for node in job.layout.node.tolist()]
        self._turns = [asyncio.Lock() for _ in self._calls]
        self._sent = [0] * len(self._calls)
        self._readers: list[asyncio.Task[None]] = [asyncio.create_task(self._read(call)) for call in self._calls]

    def _open(self, channel: Any) -> Any:
        method = "/megatronapp.v1.TraceIngest/Stream"
        return channel.stream_stream(method, response_deserializer=trace_pb2.TraceReply.FromString)()

    async def _read(self, call: Any) -> None:
        while await call.read() is not aio.EOF:  # type: ignore[attr-defined]
            pass

    async def send(self, rank: int, message: trace_pb2.TraceMessage) -> None:
        """Numbers the message: heartbeats and summaries share a stream, and take turns on it."""
        async with self._turns[rank]:
            if not message.HasField("hello"):
                self._sent[rank] += 1
                message.seq = self._sent[rank]
            await self._calls[rank].write(message.SerializeToString())

    async def close(self) -> None:
        for call in self._calls:
            await call.done_writing()
        await asyncio.wait(self._readers, timeout=READY_SECONDS)
        for channel in self._channels:
            await channel.close(None)


class Drive:
    """Plays a job in real time and listens to what is found."""

    def __init__(self, job: Job, processes: Processes) -> None:
        self._job, self._speaker = job, Speaker(job, RowBook(job.families))
        self._processes = processes
        self._score = Score(job)
        self._ended: dict[int, int] = {}
        """Of each step, when its last rank ended it."""
        self._step, self._ending = 0, False
        self.late_seconds, self.page_lag_seconds = 0.0, float("nan")

    async def run(self, steps: int) -> Outcome:
        streams = Streams(self._processes.grpc_port, self._job)
        listener = asyncio.create_task(self._listen())
        world = self._job.layout.world
        for rank in range(world):
            await streams.send(rank, self._speaker.hello(rank, 1))
        self._job.clock_ns = time.time_ns()
        beats = asyncio.create_task(self._beat(streams))
        for _ in range(steps):
            self._processes.check()
            await self._play(streams, self._job.step())
        await asyncio.sleep(SETTLE_SECONDS)
        self._ending = True  # to cancel a write would end its stream
        await beats
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        for rank in range(world):
            await streams.send(rank, self._speaker.heartbeat(rank, steps, time.time_ns(), closing=True))
        await streams.close()
        return self._score.close()

    async def _play(self, streams: Streams, step: Step) -> None:
        self._step, self._ended[step.number] = step.number, int(step.ended_unix_ns.max())
        self._score.pass_step(step)
        await asyncio.sleep(max(0.0, (int(step.ended_unix_ns.min()) - time.time_ns()) / NS))
        self.late_seconds = max(self.late_seconds, (time.time_ns() - int(step.ended_unix_ns.min())) / NS)
        for rank, message in enumerate(self._speaker.summaries(step)):
            await streams.send(rank, message)

    async def _beat(self, streams: Streams) -> None:
        """Each rank once a second, at an instant of its own."""
        world, begun, sent = self._job.layout.world, time.monotonic(), 0
        while not self._ending:
            due = int((time.monotonic() - begun) * world)
            for turn in range(sent, due):
                rank = turn % world
                await streams.send(rank, self._speaker.heartbeat(rank, self._step, time.time_ns()))
            sent = due
            await asyncio.sleep(0.02)

    async def _listen(self) -> None:
        heard = bus.connect(self._processes.redis_url)
        async for messages in heard.follow(Topic.FINDINGS):
            for message in messages:
                now = time.time_ns()
                finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
                if finding.page and self.page_lag_seconds != self.page_lag_seconds:
                    self.page_lag_seconds = (now - max(e for e in self._ended.values() if e <= now)) / NS
                self._score.observe(self._newest(now), now, finding)

    def _newest(self, now: int) -> int:
        """The step that the ranks ended last."""
        return max((step for step, ended in self._ended.items() if ended <= now), default=0)


async def _until_listening(ports: Sequence[int], processes: Processes) -> None:
    until = time.monotonic() + READY_SECONDS
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                processes.check()
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
                continue
            writer.close()
            break


def measure(world: int, step_seconds: float, seed: int) -> Measured:
    """A GPU that becomes 10 % slower in step ONSET."""
    pp, tp = (8, 8) if world % 64 == 0 and world >= 128 else (1, 1)
    layout = of_world(world, pp, tp)
    fault = Fault(What.COMPUTE, (world // 3,), 1.10, ONSET)
    job = Job(Spec(layout, step_seconds, QUIET, faults=(fault,)), seed, "realtime")
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder))
        try:
            processes.start()
            drive, outcome = asyncio.run(_drive(job, processes))
            used = processes.processor_seconds()
        finally:
            processes.stop()
    (found,) = outcome.detections
    return Measured(
        world, step_seconds, found.found, found.steps, round(found.seconds, 2), round(drive.page_lag_seconds, 2),
        outcome.false_pages, outcome.wrong_culprits, round(drive.late_seconds, 2), used,
    )  # fmt: skip


async def _drive(job: Job, processes: Processes) -> tuple[Drive, Outcome]:
    ports = (processes.redis_port, processes.grpc_port)
    await _until_listening(ports, processes)
    drive = Drive(job, processes)
    return drive, await drive.run(STEPS)


def line(measured: Measured) -> str:
    used = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured.processor_seconds.items())
    page = (
        f"paged in slow step {measured.steps_to_page}, {measured.seconds_to_page:.1f} s after the first began, "
        f"{measured.page_lag_seconds:.2f} s after its end"
        if measured.found
        else "not paged"
    )
    return (
        f"{measured.ranks:6} ranks, steps of {measured.step_seconds:g} s: {page}; {measured.false_pages} false pages, "
        f"{measured.wrong_culprits} wrong culprits; processor time: {used}; the simulation was late by "
        f"{measured.late_seconds:.2f} s at most"
    )


def pooled(jobs: Sequence[Measured]) -> str:
    """All jobs of one size together."""
    found = [job for job in jobs if job.found]
    return (
        f"{jobs[0].ranks:6} ranks: paged {intervals.share_text(len(found), len(jobs))}; "
        f"steps to the page {intervals.median_text([job.steps_to_page for job in found], '.0f')}, "
        f"seconds {intervals.median_text([job.seconds_to_page for job in found])}; "
        f"jobs with a false page or a wrong culprit "
        f"{intervals.share_text(sum(bool(job.false_pages or job.wrong_culprits) for job in jobs), len(jobs))}"
    )
