"""TraceQuery: what the gateway and the command line read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from megatronapp.collector import export, grid, history, history_reader, notes, reader
from megatronapp.collector.clocks import Clocks
from megatronapp.collector.jobs import Attempt, Jobs, Rank
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.store import Store
from megatronapp.core.auth import Authenticator, bearer
from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.core.logging import get_logger
from megatronapp.core.rpc import aborting
from megatronapp.v1 import trace_pb2, trace_pb2_grpc

log = get_logger(__name__)

THREADS = 4
"""That read for queries. More would only take the processor from intake."""

T = TypeVar("T")
Context = Any
"""grpc.aio.ServicerContext"""

_MAX_INT64 = (1 << 63) - 1
_STEP_COLUMNS = {
    "step": "<u8",
    "rank": "<u4",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "compute_ns": "<i8",
    "wait_ns": "<i8",
    "host_ns": "<i8",
    "traced": "<u1",
}


class TraceQuery(trace_pb2_grpc.TraceQueryServicer):
    """Every method asks the authenticator for a reader first.

    It reads in threads of its own: however much is asked for, intake's threads are not kept waiting.
    """

    def __init__(self, jobs: Jobs, store: Store, authenticator: Authenticator, metrics: CollectorMetrics) -> None:
        self._jobs = jobs
        self._store = store
        self._authenticator = authenticator
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, "query")

    def close(self) -> None:
        """What is being read is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ListJobs(  # noqa: N802  the protocol's names
        self, request: trace_pb2.ListJobsRequest, context: Context
    ) -> trace_pb2.ListJobsResponse:
        async with self._reader(context):
            wanted = (attempt for attempt in self._jobs if request.run in ("", attempt.run))
            jobs = [record for attempt in wanted if (record := _job_record(attempt)) is not None]
            return await self._in_thread(lambda: self._with_sizes(jobs))

    async def ListRanks(  # noqa: N802
        self, request: trace_pb2.ListRanksRequest, context: Context
    ) -> trace_pb2.ListRanksResponse:
        async with self._reader(context):
            attempt = self._jobs.get(request.run, request.attempt)
            ranks = [_rank_record(attempt.ranks[number]) for number in sorted(attempt.ranks)]
            return trace_pb2.ListRanksResponse(
                ranks=ranks, evaluations=self._jobs.evaluations(attempt), recipe=attempt.membership.recipe
            )

    async def ListSteps(  # noqa: N802
        self, request: trace_pb2.ListStepsRequest, context: Context
    ) -> trace_pb2.ListStepsResponse:
        async with self._reader(context):
            attempt = self._jobs.get(request.run, request.attempt)
            first, last = request.from_step, request.to_step
            if request.limit:
                first = max(first, (last or attempt.last_step) - request.limit + 1)
            snapshot = reader.take(self._store, attempt, "steps", first, last)
            return await self._in_thread(lambda: _steps_response(snapshot.steps()))

    async def ListStepGrid(  # noqa: N802
        self, request: trace_pb2.ListStepGridRequest, context: Context
    ) -> trace_pb2.ListStepGridResponse:
        async with self._reader(context):
            attempt = self._jobs.get(request.run, request.attempt)
            snapshot = reader.take(
                self._store, attempt, "steps", request.from_step, request.to_step, list(request.ranks)
            )
            oldest, newest = _stored_steps(attempt, snapshot)
            steps = _grid(request, oldest, newest, sorted(attempt.ranks.keys()))

            def read() -> trace_pb2.ListStepGridResponse:
                for table in snapshot.step_tables(grid.COLUMNS, stopped.is_set):
                    steps.fold(table)
                return steps.response(oldest, newest)

            with _stopped() as stopped:
                return await self._in_thread(read)

    async def ListClocks(  # noqa: N802
        self, request: trace_pb2.ListClocksRequest, context: Context
    ) -> trace_pb2.ListClocksResponse:
        async with self._reader(context):
            attempt = self._jobs.get(request.run, request.attempt)
            records = [_clock_record(attempt.clocks, number, attempt.ranks[number]) for number in sorted(attempt.ranks)]
            return trace_pb2.ListClocksResponse(clocks=records)

    async def ReadHistory(  # noqa: N802
        self, request: trace_pb2.ReadHistoryRequest, context: Context
    ) -> trace_pb2.ReadHistoryResponse:
        async with self._reader(context):
            if request.bins > history.MAX_BINS:
                raise DataError(f"{request.bins} bins; {history.MAX_BINS} are the most")
            attempts = self._jobs.attempts(request.run)
            snapshots = [history_reader.take(self._store, attempt) for attempt in attempts]
            return await self._in_thread(lambda: history_reader.read(snapshots, request))

    async def ReadSpans(  # noqa: N802
        self, request: trace_pb2.ReadSpansRequest, context: Context
    ) -> AsyncIterator[trace_pb2.RankSpans]:
        async with self._reader(context):
            attempt = self._jobs.get(request.run, request.attempt)
            snapshot = reader.take(
                self._store, attempt, "spans", request.from_step, request.to_step, list(request.ranks)
            )
            with _stopped() as stopped:
                async for spans in self._in_threads(snapshot.spans(stopped.is_set)):
                    yield spans.to_proto()

    async def Export(  # noqa: N802
        self, request: trace_pb2.ExportRequest, context: Context
    ) -> AsyncIterator[trace_pb2.ExportChunk]:
        async with self._reader(context):
            if request.format not in export.WRITERS:
                raise DataError("format must be EXPORT_FORMAT_CHROME_JSON or EXPORT_FORMAT_PERFETTO")
            attempt = self._jobs.get(request.run, request.attempt)
            snapshot = reader.take(
                self._store, attempt, "spans", request.from_step, request.to_step, list(request.ranks)
            )
            placements = {number: rank.process.placement for number, rank in attempt.ranks.items()}
            with _stopped() as stopped:
                spans = snapshot.spans(stopped.is_set)
                first = await self._in_thread(lambda: next(spans, None))
                if first is None:
                    raise NotFoundError(_no_spans(request, snapshot))
                async for data in self._in_threads(export.WRITERS[request.format](chain([first], spans), placements)):
                    yield trace_pb2.ExportChunk(data=data)

    @asynccontextmanager
    async def _reader(self, context: Context) -> AsyncIterator[None]:
        async with aborting(context, lambda reason: self._metrics.refused.labels(reason=reason).inc()):
            await self._authenticator.reader(bearer(context.invocation_metadata()))
            yield

    def _with_sizes(self, jobs: list[trace_pb2.JobRecord]) -> trace_pb2.ListJobsResponse:
        for record in jobs:
            record.stored_bytes = self._store.attempt_bytes((record.run, record.attempt))
        return trace_pb2.ListJobsResponse(jobs=jobs)

    async def _in_thread(self, make: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, make)

    async def _in_threads(self, items: Iterator[T]) -> AsyncIterator[T]:
        """Each next item is made in a thread."""
        end = object()
        while (item := await self._in_thread(lambda: next(items, end))) is not end:
            yield item  # type: ignore[misc]


@contextmanager
def _stopped() -> Iterator[threading.Event]:
    """Set when nobody takes the answer any more: a thread can't be cancelled, it has to look."""
    stopped = threading.Event()
    try:
        yield stopped
    finally:
        stopped.set()


def _job_record(attempt: Attempt) -> trace_pb2.JobRecord | None:
    """None for one that can't be told: the others are listed all the same."""
    try:
        return notes.job_record(attempt)
    except Exception:
        log.exception("job_not_listed", run=attempt.run, attempt=attempt.attempt)
        return None


def _no_spans(request: trace_pb2.ExportRequest, snapshot: reader.Snapshot) -> str:
    steps = f"steps {snapshot.from_step} to {snapshot.to_step}"
    ranks = f" of ranks {', '.join(map(str, request.ranks))}" if request.ranks else ""
    return (
        f"run {request.run!r} has no spans in {steps}{ranks}: only traced steps have detail (--trace, or tracing "
        "switched on while it runs), and the oldest is deleted after a while; the list of steps tells which are traced"
    )


def _steps_response(table: Any) -> trace_pb2.ListStepsResponse:
    if table is None:
        return trace_pb2.ListStepsResponse()
    columns = {name: table[name].to_numpy() for name in _STEP_COLUMNS}
    columns["start_ns"] = columns["start_ns"] + table["clock_offset_ns"].to_numpy()
    data = {name: np.ascontiguousarray(columns[name], dtype).tobytes() for name, dtype in _STEP_COLUMNS.items()}
    return trace_pb2.ListStepsResponse(count=len(table), **data)


def _stored_steps(attempt: Attempt, snapshot: reader.Snapshot) -> tuple[int, int]:
    """The oldest and the newest step that can be read of an attempt."""
    blocks = [block.step for buffer in (attempt.writing, attempt.buffer) for block in buffer.summaries]
    oldest = min([*(part.first for part in snapshot.parts), *blocks], default=attempt.last_step)
    return oldest, max([attempt.last_step, *(part.last for part in snapshot.parts)])


def _grid(request: trace_pb2.ListStepGridRequest, oldest: int, newest: int, ranks: list[int]) -> grid.StepGrid:
    """An empty grid for what was asked for. Raises DataError for what can't be answered."""
    first, last = max(request.from_step, oldest), min(request.to_step or newest, newest, _MAX_INT64)
    wanted = sorted(set(ranks) & set(request.ranks)) if request.ranks else ranks
    if first > last:
        raise DataError(f"from_step {first} lies behind to_step {last}; steps {oldest} to {newest} are stored")
    fitting = grid.choose_bucket(first, last, len(wanted), request.max_buckets)
    bucket = request.bucket_steps or fitting
    if bucket & (bucket - 1):
        raise DataError(f"bucket_steps must be a power of two, not {bucket}")
    if (last // bucket - first // bucket + 1) * len(wanted) > grid.MAX_CELLS:
        raise DataError(f"too many buckets; ask for {fitting} steps a bucket, or for fewer steps")
    return grid.StepGrid(first, last, bucket, np.array(wanted, np.uint32))


def _rank_record(rank: Rank) -> trace_pb2.RankRecord:
    newest = rank.newest
    return trace_pb2.RankRecord(
        identity=rank.process.identity,
        placement=rank.process.placement,
        device=rank.process.device,
        attached=rank.process.attached,
        connected=rank.streams > 0,
        last_seen_unix_ns=rank.process.heard_unix_ns,
        communicators=rank.communicators.values(),
        closed=rank.process.closed,
        heartbeat=notes.without(newest.heartbeat, "frontiers", "communicators", "evaluations") if newest else None,
        heartbeat_unix_ns=newest.unix_ns if newest else 0,
    )


def _clock_record(clocks: Clocks, number: int, rank: Rank) -> trace_pb2.ClockRecord:
    record = trace_pb2.ClockRecord(rank=number, node=rank.process.placement.node)
    clock = clocks.clock_of(number)
    if clock is None:
        return record
    alignment = clocks.alignment
    reading = clocks.latest(number)
    record.offset_ns, record.error_ns = reading.offset_ns, reading.error_ns
    record.drift_ppm = alignment.drift_ppm(clock)
    record.fitted = alignment.fitted
    record.anchors = alignment.anchors
    residuals = alignment.residuals(clock)
    if residuals:
        record.residual_median_ns = round(residuals.median_ns)
        record.residual_p90_ns = round(residuals.p90_ns)
        record.raw_residual_median_ns = round(residuals.raw_median_ns)
    return record
