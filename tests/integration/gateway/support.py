"""What the gateway's neighbours say: messages of ranks, findings, and a trace-collector that answers queries."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc
import numpy as np
from grpc import aio

from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State
from megatronapp.v1 import trace_pb2, trace_pb2_grpc

RUN = "run-1"
FOUND_UNIX_NS = time.time_ns()
SECOND_NS = 1_000_000_000


def identity(rank: int = 0, *, run: str = RUN, attempt: int = 1, incarnation: int = 7) -> trace_pb2.Identity:
    return trace_pb2.Identity(run=run, job="team/gpt", attempt=attempt, rank=rank, incarnation=incarnation)


def message(
    body: trace_pb2.Hello | trace_pb2.StepSummary | trace_pb2.Heartbeat | None,
    who: trace_pb2.Identity | None = None,
    *,
    at_ns: int | None = None,
    lost: bool = False,
) -> trace_pb2.RankMessage:
    inner = trace_pb2.TraceMessage(seq=0 if isinstance(body, trace_pb2.Hello) else 1)
    if isinstance(body, trace_pb2.Hello):
        inner.hello.CopyFrom(body)
    elif isinstance(body, trace_pb2.StepSummary):
        inner.summary.CopyFrom(body)
    elif isinstance(body, trace_pb2.Heartbeat):
        inner.heartbeat.CopyFrom(body)
    received = time.time_ns() if at_ns is None else at_ns
    return trace_pb2.RankMessage(identity=who or identity(), message=inner, received_unix_ns=received, lost=lost)


def hello(rank: int = 0, *, world: int = 4, first_step: int = 1, total_steps: int = 100) -> trace_pb2.Hello:
    sizes = trace_pb2.ParallelSizes(world=world, tensor=1, pipeline=2, data=2, context=1, expert=1, virtual_pipeline=1)
    placement = trace_pb2.Placement(node="node-a", gpu_uuid=f"GPU-{rank}", pipeline=rank // 2, data=rank % 2)
    placement.sizes.CopyFrom(sizes)
    schedule = trace_pb2.Schedule(name="1f1b", total_steps=total_steps, first_step=first_step)
    return trace_pb2.Hello(placement=placement, device=trace_pb2.DEVICE_CPU, schedule=schedule)


def summary(step: int, *, seconds: float = 0.5, **progress: float) -> trace_pb2.StepSummary:
    return trace_pb2.StepSummary(
        step=step, duration_ns=int(seconds * SECOND_NS), progress=trace_pb2.Progress(**progress)
    )


def heartbeat(**fields: object) -> trace_pb2.Heartbeat:
    return trace_pb2.Heartbeat(**fields)


def control(*, enabled: bool = True, interval: int = 5) -> trace_pb2.TraceControl:
    return trace_pb2.TraceControl(
        enabled=enabled, interval=interval, continuous_iterations=2, granularity=trace_pb2.GRANULARITY_BASE
    )


def finding(number: int = 1, *, run: str = RUN, state: State = State.OPEN, changes: int = 0) -> Finding:
    return Finding(
        id=f"finding-{number}",
        run=run,
        job="team/gpt",
        kind=Kind.SLOW_GPU,
        cause=Cause.COMPUTE,
        ranks=(1,),
        since_step=40,
        effect_ratio=1.25,
        cost_ratio=1.2,
        confidence=0.97,
        state=state,
        page=True,
        resolved_step=60 if state is State.RESOLVED else None,
        evidence=(Evidence(signal="compute_effect", text="25 % over its peers", steps=(40, 41), values=(1.2, 1.3)),),
        summary="rank 1 computes 25 % slower than its peers",
        opened_unix_ns=5,
        updated_unix_ns=FOUND_UNIX_NS + changes,
    )


class CollectorAnswers(trace_pb2_grpc.TraceQueryServicer):
    """Three steps of two ranks, and a trace in three pieces. Refuses another token than `token`."""

    START_NS = 1_790_000_000_000_000_000

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.requests: list[object] = []

    async def ListJobs(self, request, context):  # noqa: N802  gRPC's name
        records = [
            trace_pb2.JobRecord(
                run="run-archived",
                job="team/old",
                attempt=attempt,
                last_step=last_step,
                last_seen_unix_ns=time.time_ns(),
                schedule=trace_pb2.Schedule(total_steps=90),
            )
            for attempt, last_step in ((2, 90), (1, 40))
        ]
        return trace_pb2.ListJobsResponse(jobs=records)

    async def ListRanks(self, request, context):  # noqa: N802
        record = trace_pb2.RankRecord(
            identity=identity(3, run=request.run, attempt=2),
            placement=hello(3).placement,
            device=trace_pb2.DEVICE_CUDA,
            last_seen_unix_ns=time.time_ns(),
        )
        return trace_pb2.ListRanksResponse(ranks=[record])

    async def ListSteps(self, request, context):  # noqa: N802
        self.requests.append(request)
        await self._check(context)
        if request.from_step == 666:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "from_step lies behind to_step")
        rows = 6
        return trace_pb2.ListStepsResponse(
            count=rows,
            step=np.repeat([1, 2, 3], 2).astype("<u8").tobytes(),
            rank=np.tile([0, 1], 3).astype("<u4").tobytes(),
            start_ns=(self.START_NS + np.arange(rows) * 250_000_000).astype("<i8").tobytes(),
            duration_ns=np.full(rows, 500_000_000, "<i8").tobytes(),
            compute_ns=np.full(rows, 300_000_000, "<i8").tobytes(),
            wait_ns=np.full(rows, 150_000_000, "<i8").tobytes(),
            host_ns=np.full(rows, 50_000_000, "<i8").tobytes(),
            traced=np.tile([0, 1], 3).astype("<u1").tobytes(),
        )

    async def ListStepGrid(self, request, context):  # noqa: N802
        """Two buckets of two ranks, the second of which nobody has told."""
        self.requests.append(request)
        await self._check(context)
        numbers = {"offset": [0, 0.125], "duration": [0.5, 0.5], "shortest": [0.4, 0.4], "longest": [0.6, 0.6]}
        numbers |= {"compute": [0.3, 0.3], "most_compute": [0.35, 0.35], "wait": [0.15, 0.15], "host": [0.05, 0.05]}
        cells = {
            f"{name}_seconds": np.array([*values, np.nan, np.nan], "<f4").tobytes() for name, values in numbers.items()
        }
        return trace_pb2.ListStepGridResponse(
            oldest_step=1,
            newest_step=9,
            first_step=2,
            bucket_steps=request.bucket_steps or 2,
            ranks=np.array([0, 1], "<u4").tobytes(),
            start_ns=np.array([self.START_NS, 0], "<i8").tobytes(),
            end_ns=np.array([self.START_NS + SECOND_NS, 0], "<i8").tobytes(),
            traced=b"\x01\x00",
            **cells,
        )

    async def ListClocks(self, request, context):  # noqa: N802
        clock = trace_pb2.ClockRecord(rank=1, node="node-a", offset_ns=-12, drift_ppm=0.5, fitted=True, anchors=40)
        return trace_pb2.ListClocksResponse(clocks=[clock])

    async def ReadHistory(self, request, context):  # noqa: N802
        self.requests.append(request)
        steps = np.array([1, 2, 3])
        loss = trace_pb2.HistorySeries(name="loss", mean=(3.0 - steps / 10).astype("<f8").tobytes())
        attempt = trace_pb2.AttemptHistory(
            attempt=1,
            first_seen_unix_ns=self.START_NS,
            last_seen_unix_ns=self.START_NS + 3 * SECOND_NS,
            count=3,
            bin_first_step=steps.astype("<u8").tobytes(),
            bin_last_step=steps.astype("<u8").tobytes(),
            start_ns=(self.START_NS + (steps - 1) * SECOND_NS).astype("<i8").tobytes(),
            end_ns=(self.START_NS + steps * SECOND_NS).astype("<i8").tobytes(),
            phases=np.zeros(3, "<u4").tobytes(),
            series=[loss],
            **{f"{name}_ns": np.zeros(3).tobytes() for name in ("duration", "stage_wait", "checkpoint", "evaluation")},
        )
        return trace_pb2.ReadHistoryResponse(attempts=[attempt])

    async def Export(self, request, context) -> AsyncIterator[trace_pb2.ExportChunk]:  # noqa: N802
        self.requests.append(request)
        if request.to_step == 404:
            await context.abort(grpc.StatusCode.NOT_FOUND, "steps 1 to 404 hold no spans")
        if request.to_step == 405:
            return
        if request.to_step == 500:
            yield trace_pb2.ExportChunk(data=b"one ")
            await context.abort(grpc.StatusCode.INTERNAL, "disk failed")
        for piece in (b"one ", b"two ", b"three"):
            yield trace_pb2.ExportChunk(data=piece)

    async def _check(self, context) -> None:
        sent = dict(context.invocation_metadata()).get("authorization", "")
        if self.token and sent != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")


async def serve(answers: CollectorAnswers) -> tuple[aio.Server, str]:
    server = aio.server()
    trace_pb2_grpc.add_TraceQueryServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"
