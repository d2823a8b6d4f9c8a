"""Collector, detector and gateway as one process has them, attacked at every door that they have, beside an innocent
job.

Streams, queries and requests are handed to the services' own handlers, without sockets between: an input takes a
millisecond, so that there can be many.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc import aio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import StaticTokens
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from megatronapp.core.trainingjob import Phase
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import findings_pb2, trace_pb2
from tests.attack.documented import Operation, operations
from tests.attack.inputs import TEXTS, any_value, as_json, damaged, mutated
from tests.attack.session import Harm
from tests.integration.collector import support
from tests.support import hostile
from tests.support.simulated import Job, Layout

EVIL_JOB, EVIL_RUNS = "team-a/evil", ("run-evil", "run-2", support.RUN)
PODS, VIEWER, OPERATOR, ALERTS, PHASES = "pods-token", "viewer-token", "operator-token", "alerts-token", "phase-token"
EXPECTED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
}
QUERIES = {
    "ListJobs": trace_pb2.ListJobsRequest,
    "ListRanks": trace_pb2.ListRanksRequest,
    "ListSteps": trace_pb2.ListStepsRequest,
    "ListClocks": trace_pb2.ListClocksRequest,
    "ReadSpans": trace_pb2.ReadSpansRequest,
    "Export": trace_pb2.ExportRequest,
}
MESSAGES: dict[Topic, type[Any]] = {
    Topic.FINDINGS: findings_pb2.Finding,
    Topic.REFUTATIONS: findings_pb2.Refutation,
    Topic.TRACE_CONTROL: trace_pb2.TraceControl,
}
"""What is on a topic, where it is not made in a way of its own."""
MAX_JOBS = 300
MAX_SERIES = 100 * MAX_JOBS
"""Of all services on one page of metrics, whatever the jobs and senders call themselves."""
_END: Any = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out
SCRAPED_EVERY = 10
"""Looks at the innocent from one to the next at the metrics: what stands there twice, or grows, stays there, and a page
of thousands of series takes longer to read than all else together."""
SETTLE_SECONDS = 60.0
"""For the platform to work off what came before, when the innocent is looked at."""


class AbortedError(Exception):
    """A call that the service has ended with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Call:
    """gRPC's context of one call, as the collector's handlers use it."""

    def __init__(self, token: str | bytes, messages: list[bytes] | None = None) -> None:
        self._metadata = (("authorization", token),) if token else ()
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.acked = asyncio.Event()
        self.ack = 0
        for message in messages or ():
            self.requests.put_nowait(message)
        if messages is not None:
            self.requests.put_nowait(_END)

    def invocation_metadata(self) -> Any:
        return self._metadata

    def set_trailing_metadata(self, metadata: Any) -> None:
        """What was refused."""

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, reply: trace_pb2.TraceReply) -> None:
        self.ack = max(self.ack, reply.ack.seq)
        self.acked.set()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


class Stack:
    name = "platform"
    at_once = 32

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        """What came of the inputs."""
        self._step = 0
        self._doors: list[Callable[[random.Random], Awaitable[None]]] = [
            *[self._stream] * 8, *[self._bus] * 6, *[self._query] * 2, *[self._request] * 3, self._socket, self._crowd,
        ]  # fmt: skip

    async def start(self, folder: Path) -> None:
        self.bus, self.registry = MemoryBus(max_messages=5_000), CollectorRegistry()
        tokens = StaticTokens(SecretStr(PODS), SecretStr(VIEWER), SecretStr(OPERATOR))
        self.collector = Collector(
            CollectorSettings(
                grpc_port=0, data_dir=folder / "collector", fsync=False, flush_seconds=1.0, max_jobs=MAX_JOBS
            ),
            self.bus, self.registry, tokens,
        )  # fmt: skip
        await self.collector.start()
        findings = FindingsStore(MemoryBackend())
        judging = DetectorSettings(quarantine_dir=folder / "detector", tick_seconds=0.2)
        self.detector = Detector(judging, self.bus, self.registry, findings)
        await self.detector.start()
        settings = GatewaySettings(
            port=0,
            grpc_port=0,
            collector_addresses=(f"127.0.0.1:{self.collector.port}",),
            collector_token=SecretStr(OPERATOR),
            alertmanager_token=SecretStr(ALERTS),
            phase_token=SecretStr(PHASES),
            quarantine_dir=folder / "gateway",
        )
        self.gateway = Gateway(settings, self.bus, self.registry, tokens, findings)
        await self.gateway.start()
        assert self.gateway._server is not None
        app: Any = self.gateway._server.config.app
        self._app = app
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        self._operations = operations()
        self._good = _good_messages()
        self._innocent = Call(f"Bearer {PODS}")
        self._innocent_stream = asyncio.create_task(self._serve(self._innocent))
        self._innocent.requests.put_nowait(support.hello(support.identity()).SerializeToString())
        await self.check()

    async def stop(self) -> None:
        self._innocent.requests.put_nowait(_END)
        await asyncio.gather(self._innocent_stream, return_exceptions=True)
        await self._client.aclose()
        for service in (self.gateway, self.detector, self.collector):
            await service.stop()

    async def execute(self, chance: random.Random) -> None:
        await chance.choice(self._doors)(chance)

    # ---- the innocent

    async def check(self) -> None:
        """Its next step is acknowledged, judged, shown and stored, and every service says that it is ready."""
        self._step += 1
        step, seq = self._step, 2 * self._step
        for message in (support.summary(seq - 1, step), support.batch(seq, step)):
            self._innocent.requests.put_nowait(message.SerializeToString())
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._until("its step is acknowledged", lambda: self._innocent.ack >= seq)
                await self._until("its step is judged", lambda: self._judged() >= step - 1)
                await self._until("its step is shown", lambda: self._shown() == ("team/gpt", step))
                for service in (self.collector, self.detector, self.gateway):
                    await self._until(f"{type(service).__name__} is ready", service.ready)
        except TimeoutError as error:
            raise Harm(f"not in time: {self._waiting_for}") from error
        await self._stored(step)

    async def _until(self, what: str, true: Callable[[], bool]) -> None:
        self._waiting_for = what
        while not true():
            if self._innocent_stream.done():
                raise Harm("the innocent's stream has ended") from self._innocent_stream.exception()
            for service in (self.collector, self.detector, self.gateway):
                for task in service.tasks:
                    if task.done() and (task.cancelled() or task.exception()):
                        raise Harm(f"a part of {type(service).__name__} has ended") from task.exception()
            await asyncio.sleep(0.002)

    def _judged(self) -> int:
        engine = self.detector._engines.running.get(support.RUN)
        return engine.newest.step if engine is not None and engine.newest is not None else 0

    def _shown(self) -> tuple[str, int]:
        job = self._app.state.parts.job_store.jobs.get(support.RUN)
        return (job.job, job.step) if job is not None else ("", 0)

    async def _stored(self, step: int) -> None:
        request = trace_pb2.ListStepsRequest(run=support.RUN, attempt=1)
        answer = await self.collector._query.ListSteps(request, Call(f"Bearer {VIEWER}"))
        if answer.count != step:
            raise Harm(f"{answer.count} steps of the innocent are stored, not {step}")
        shown = await self._client.get(f"/api/v1/jobs/{support.RUN}", headers=_bearer(VIEWER))
        if shown.status_code != 200 or shown.json()["state"] not in ("running", "starting"):
            raise Harm(f"the innocent is shown as {shown.text[:300]}")
        if step % SCRAPED_EVERY == 0:
            self._scrape()

    def _scrape(self) -> None:
        """Prometheus can read what the services count, in which each series stands once, and not without end."""
        page = generate_latest(self.registry).decode()
        families = text_string_to_metric_families(page)
        series = Counter((s.name, *sorted(s.labels.items())) for family in families for s in family.samples)
        if twice := [name for name, number in series.items() if number > 1]:
            raise Harm(f"on the page of metrics twice: {twice[:3]}")
        if len(series) > MAX_SERIES:
            raise Harm(f"{len(series)} series on the page of metrics")

    # ---- the doors

    async def _stream(self, chance: random.Random) -> None:
        """A rank's stream: a Hello and messages, each as it should be but for some fields, or no message at all."""
        messages = [self._message(chance, "hello" if chance.random() < 0.95 else None)]
        messages += [self._message(chance) for _ in range(chance.randrange(4))]
        token = f"Bearer {PODS}" if chance.random() < 0.97 else chance.choice(TEXTS)
        await self._expecting("stream", self._serve(Call(token, messages)))

    async def _crowd(self, chance: random.Random) -> None:
        """A run that nobody has heard of, with more ranks than it can have, on a stream that ends at once."""
        hello = next(each for each in self._good if each.HasField("hello"))
        message = trace_pb2.TraceMessage.FromString(hello.SerializeToString())
        who = message.hello.identity
        who.run, who.job = f"crowd-{chance.randrange(10**9)}", f"team-a/crowd-{chance.randrange(10**9)}"
        who.rank, who.incarnation = chance.choice((0, 1, 2**20 - 1)), chance.randrange(1, 2**64)
        message.hello.placement.sizes.world = chance.choice((1, 2, 2**20))
        summary = support.summary(1, chance.choice((1, 2, 10**9)))
        messages = [each.SerializeToString() for each in (message, summary)]
        await self._expecting("crowd", self._serve(Call(f"Bearer {PODS}", messages)))

    async def _serve(self, call: Call) -> None:
        await self.collector._ingest._stream(None, call)

    def _message(self, chance: random.Random, kind: str | None = None) -> bytes:
        known = [each for each in self._good if kind is None or each.WhichOneof("body") == kind]
        message = trace_pb2.TraceMessage.FromString(chance.choice(known).SerializeToString())
        if message.WhichOneof("body") == "hello":
            who = message.hello.identity
            if chance.random() < 0.7:
                hostile.scramble(message.hello, chance, chance.choice((0.0, 0.02, 0.1, 0.5)))
                if chance.random() < 0.8:
                    message.hello.identity.CopyFrom(who)
            message.hello.identity.run = chance.choice(EVIL_RUNS)
            message.hello.identity.job = EVIL_JOB
        else:
            hostile.scramble(message, chance, chance.choice((0.0, 0.02, 0.1, 0.3)))
            if chance.random() < 0.5:
                message.seq = chance.randint(1, 50)
        data: bytes = message.SerializeToString()
        return damaged(chance, data) if chance.random() < 0.15 and kind != "hello" else data

    async def _bus(self, chance: random.Random) -> None:
        """Whatever an older or a broken service may have put on the bus."""
        topic = chance.choice((*[Topic.STEPS] * 6, *[Topic.FINDINGS] * 2, Topic.REFUTATIONS, Topic.PHASES, *Topic))
        key = chance.choice((*EVIL_RUNS, *TEXTS[:8]))
        value = self._value(chance, topic)
        await self.bus.publish(topic, key, damaged(chance, value) if chance.random() < 0.1 else value)
        self.seen[f"bus {topic}"] += 1

    def _value(self, chance: random.Random, topic: Topic) -> bytes:
        if topic is Topic.STEPS:
            run = chance.choice(EVIL_RUNS)
            return bytes(hostile.message(chance, run=run, job=EVIL_JOB).SerializeToString())
        if topic is Topic.INCIDENTS:
            return as_json(mutated(chance, _incident(), chance.choice((0.02, 0.2))))
        if topic is Topic.PHASES:
            return as_json(mutated(chance, _phases(chance), chance.choice((0.02, 0.2))))
        message: Any = MESSAGES.get(topic, trace_pb2.TraceControl)()
        hostile.scramble(message, chance, chance.choice((0.2, 0.6)))
        if isinstance(message, findings_pb2.Refutation) and chance.random() < 0.7:
            message.finding = f"finding-{chance.randrange(9)}"
        if isinstance(message, findings_pb2.Finding):
            message.run, message.job = chance.choice(EVIL_RUNS[:2]), EVIL_JOB
            if chance.random() < 0.7:
                message.id, message.kind, message.cause = f"finding-{chance.randrange(9)}", "slow_gpu", "compute"
                message.attempt, message.state = 1, chance.choice(("open", "resolved"))
        return bytes(message.SerializeToString())

    async def _query(self, chance: random.Random) -> None:
        method = chance.choice(list(QUERIES))
        request = QUERIES[method]()
        hostile.scramble(request, chance, 0.4)
        fields = request.DESCRIPTOR.fields_by_name
        if "run" in fields and chance.random() < 0.8:
            request.run = chance.choice(EVIL_RUNS)
            if "attempt" in fields:
                request.attempt = chance.choice((0, 0, 1, request.attempt))
        call = Call(f"Bearer {VIEWER}" if chance.random() < 0.95 else chance.choice(TEXTS))
        answer = getattr(self.collector._query, method)(request, call)
        await self._expecting(method, _all(answer) if hasattr(answer, "__aiter__") else answer)

    async def _expecting(self, what: str, doing: Awaitable[Any]) -> None:
        """A call ends well, or with a status that tells the caller what to do."""
        try:
            await doing
        except AbortedError as error:
            if error.code not in EXPECTED:
                raise Harm(f"{what}: {error.code.name}: {error}") from error
            self.seen[f"{what} {error.code.name}"] += 1
        else:
            self.seen[f"{what} OK"] += 1

    async def _request(self, chance: random.Random) -> None:
        """A request of the documented ones, with any values; answered, and never with a fault of the gateway's own."""
        operation: Operation = chance.choice(self._operations)
        made = operation.request(chance, (*EVIL_RUNS, "finding-1"))
        token = chance.choice((*[OPERATOR] * 6, *[ALERTS] * 3, *[PHASES] * 2, VIEWER, "x" * 300, ""))
        headers = _bearer(token) | {"Content-Type": "application/json"}
        if chance.random() < 0.1:
            name = chance.choice(("Cookie", "Origin", "Host", "Content-Type", "Content-Length", "Authorization"))
            headers[name] = _header(chance)
        try:
            answer = await self._client.request(
                operation.method, made.path, params=made.query, content=made.body, headers=headers
            )
        except (httpx.InvalidURL, UnicodeEncodeError):
            return  # no client can send it
        if answer.status_code >= 500 and answer.status_code != 503:
            raise Harm(f"{operation.method} {made}: {answer.status_code} {answer.text[:500]}")
        self.seen[f"{operation.method} {answer.status_code}"] += 1

    async def _socket(self, chance: random.Random) -> None:
        """A viewer's WebSocket that says anything."""
        says: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        for _ in range(chance.randrange(5)):
            text = json.dumps(any_value(chance))
            said = {"text": text} if chance.random() < 0.5 else {"bytes": damaged(chance, text.encode())}
            says.append({"type": "websocket.receive", **said})
        says.append({"type": "websocket.disconnect", "code": chance.choice((1000, 1001, 1006))})
        token = OPERATOR if chance.random() < 0.7 else chance.choice(("", _header(chance)))
        headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode("latin-1", "replace"))]
        if chance.random() < 0.2:
            headers.append((b"cookie", f"megatronapp_session={_header(chance)}".encode("latin-1", "replace")))
        scope = {
            "type": "websocket", "path": "/api/v1/events", "raw_path": b"/api/v1/events", "root_path": "",
            "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            "subprotocols": [], "scheme": "ws", "http_version": "1.1", "extensions": {"websocket.http.response": {}},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            if not says:
                await asyncio.Event().wait()
            return says.pop(0)

        async def send(message: dict[str, Any]) -> None:
            self.seen[f"socket {message['type']}"] += 1

        await self._app(scope, receive, send)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _header(chance: random.Random) -> str:
    text = chance.choice(TEXTS).encode("latin-1", "ignore").decode("latin-1")
    return "".join(letter for letter in text if letter.isprintable() and letter < "\x80")[:2_000]


async def _all(answer: Any) -> None:
    async for _ in answer:
        pass


def _phases(chance: random.Random) -> dict[str, Any]:
    """Also of the innocent's run, under another name."""
    phases = (*map(str, Phase), None)
    return {
        "jobs": [
            {
                "run": chance.choice((*EVIL_RUNS, f"wait-{chance.randrange(10**9)}")),
                "job": EVIL_JOB,
                "phase": chance.choice(phases),
                "reason": "Unschedulable",
                "message": chance.choice(TEXTS),
                "since_unix_seconds": chance.choice((0, 1, time.time(), 1e11)),
            }
            for _ in range(chance.randrange(4))
        ]
    }


def _incident() -> dict[str, Any]:
    state = {
        "group": "g", "firing": True, "name": "SlowGPU", "level": "P1", "summary": "slow", "description": "",
        "cause": "", "namespace": "ml", "training_job": "gpt", "node": "n1", "ranks": ["1"],
        "since_unix_seconds": time.time(),
    }  # fmt: skip
    return {"type": "heard", "at": time.time(), "state": state}


def _good_messages() -> list[trace_pb2.TraceMessage]:
    """Of an ordinary job: each kind of message that a rank sends."""
    job = Job(Layout(dp=2, pp=1), run=EVIL_RUNS[0])
    found = []
    for each in (*job.hellos(), *job.step(1), *job.step(2)):
        each.message.seq = each.message.seq or 1
        if each.message.HasField("hello"):
            each.message.seq = 0
            each.identity.job = EVIL_JOB
            each.message.hello.identity.CopyFrom(each.identity)
        found.append(each.message)
    beat = trace_pb2.Heartbeat(clock_ns=5, unix_ns=time.time_ns(), step=2, activity="forward")
    beat.frontiers.add(communicator=1, enqueued=5, started=4, completed=4, operation="all_reduce", peer=-1)
    found += [support.batch(2, 1), support.batch(3, 2, 40), trace_pb2.TraceMessage(seq=4, heartbeat=beat)]
    return found
