"""TraceQuery as the gateway asks it: the collector's answers as REST values, its refusals as errors of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from megatronapp.core.errors import ConfigError, MegatronAppError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.tls import ClearTextWarning, ClientTls, handshake_failure, open_channel
from megatronapp.gateway.models import Clock
from megatronapp.v1 import trace_pb2, trace_pb2_grpc

log = get_logger(__name__)

CALL_SECONDS = 10.0
REACHABLE_SECONDS = 1.5
EXPORT_SECONDS = 600.0
MAX_MESSAGE_BYTES = 64 << 20


class CollectorClient:
    """One channel; it connects by itself, and again when the collector comes back. It is opened anew when the files of
    its certificates have changed."""

    def __init__(self, address: str, token: SecretStr | None, tls: ClientTls) -> None:
        """Raises ConfigError when a certificate can't be used."""
        self._address = address
        self._tls = tls
        self._metadata = (("authorization", f"Bearer {token.get_secret_value()}"),) if token else ()
        if token:
            ClearTextWarning("MEGATRONAPP_GATEWAY_COLLECTOR_CA_FILE").warn(address, tls)
        self._open()

    async def close(self) -> None:
        await self._channel.close(grace=None)

    def _open(self) -> None:
        self._versions = self._tls.versions()
        options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)
        self._channel = open_channel(self._address, self._tls, options)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self._stub: Any = trace_pb2_grpc.TraceQueryStub(self._channel)  # type: ignore[no-untyped-call]

    @property
    def _query(self) -> Any:
        """The stub, on a channel with the certificates as they are now; running calls end on the one before."""
        if self._tls.enabled and self._tls.versions() != self._versions:
            before = self._channel
            try:
                self._open()
            except ConfigError as error:  # perhaps half written: the next call looks again
                log.error("certificate_not_renewed", error=str(error))
                self._versions = ()
            else:
                self._closing = asyncio.ensure_future(before.close(grace=EXPORT_SECONDS))
        return self._stub

    async def reachable(self) -> bool:
        """Whether the collector answers at all, be it that it has no health service. One that is only slow is asked
        twice: on a busy machine a single answer may be late."""
        for _ in range(2):
            try:
                await self._health.Check(health_pb2.HealthCheckRequest(), timeout=REACHABLE_SECONDS)
            except aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                return error.code() is not grpc.StatusCode.UNAVAILABLE
            return True
        return False

    async def jobs(self, run: str = "") -> Sequence[trace_pb2.JobRecord]:
        """All attempts, or those of one run."""
        answer: trace_pb2.ListJobsResponse = await self._ask(self._query.ListJobs, trace_pb2.ListJobsRequest(run=run))
        return answer.jobs

    async def ranks(self, run: str) -> trace_pb2.ListRanksResponse:
        request = trace_pb2.ListRanksRequest(run=run)
        answer: trace_pb2.ListRanksResponse = await self._ask(self._query.ListRanks, request)
        return answer

    async def steps(self, request: trace_pb2.ListStepsRequest) -> trace_pb2.ListStepsResponse:
        answer: trace_pb2.ListStepsResponse = await self._ask(self._query.ListSteps, request)
        return answer

    async def history(self, request: trace_pb2.ReadHistoryRequest) -> trace_pb2.ReadHistoryResponse:
        answer: trace_pb2.ReadHistoryResponse = await self._ask(self._query.ReadHistory, request)
        return answer

    async def step_grid(self, request: trace_pb2.ListStepGridRequest) -> trace_pb2.ListStepGridResponse:
        answer: trace_pb2.ListStepGridResponse = await self._ask(self._query.ListStepGrid, request)
        return answer

    async def clocks(self, run: str) -> list[Clock]:
        request = trace_pb2.ListClocksRequest(run=run)
        answer: trace_pb2.ListClocksResponse = await self._ask(self._query.ListClocks, request)
        return [_clock(record) for record in answer.clocks]

    async def export(self, request: trace_pb2.ExportRequest) -> AsyncGenerator[bytes]:
        """The file in pieces. Raises NotFoundError, UsageError or UnavailableError, mostly before the first."""
        with self._explained():
            call = self._query.Export(request, timeout=EXPORT_SECONDS, metadata=self._metadata)
            try:
                async for chunk in call:
                    yield chunk.data
            finally:
                call.cancel()  # whoever asked may have left

    async def _ask(self, method: Any, request: Message) -> Any:
        with self._explained():
            return await method(request, timeout=CALL_SECONDS, metadata=self._metadata)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except aio.AioRpcError as error:
            raise self._explain(error) from error

    def _explain(self, error: aio.AioRpcError) -> MegatronAppError:
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.NOT_FOUND:
                return NotFoundError(details)
            case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
                return UsageError(details)
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                return UnavailableError(
                    "the trace-collector refuses the gateway's token; set MEGATRONAPP_GATEWAY_COLLECTOR_TOKEN"
                )
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
                failure = handshake_failure(details, self._tls)
                reason = f": {failure}" if failure else ""
                return UnavailableError(f"the trace-collector at {self._address} does not answer{reason}")
            case grpc.StatusCode.UNIMPLEMENTED:
                return UnavailableError(f"the trace-collector at {self._address} is too old for this; upgrade it")
            case _:
                return UnavailableError(f"the trace-collector at {self._address} failed: {details}")


def timeline_document(answer: trace_pb2.ListStepsResponse) -> dict[str, object]:
    """The fields of `Timeline`. Starts count from the earliest, since a float holds no ns since 1970."""
    start = np.frombuffer(answer.start_ns, "<i8")
    origin = int(start.min()) if len(start) else 0
    return {
        "origin_unix_seconds": origin / 1e9,
        "step": np.frombuffer(answer.step, "<u8").tolist(),
        "rank": np.frombuffer(answer.rank, "<u4").tolist(),
        "start_seconds": ((start - origin) / 1e9).tolist(),
        "duration_seconds": (np.frombuffer(answer.duration_ns, "<i8") / 1e9).tolist(),
        "compute_seconds": (np.frombuffer(answer.compute_ns, "<i8") / 1e9).tolist(),
        "wait_seconds": (np.frombuffer(answer.wait_ns, "<i8") / 1e9).tolist(),
        "host_seconds": (np.frombuffer(answer.host_ns, "<i8") / 1e9).tolist(),
        "traced": (np.frombuffer(answer.traced, "<u1") != 0).tolist(),
    }


def grid_columns(answer: trace_pb2.ListStepGridResponse) -> tuple[dict[str, float], dict[str, npt.NDArray[Any]]]:
    """A grid's own values, and its columns.

    Durations are half floats: a picture shows no more than their 11 bits, and they are what a page waits for. What is
    the same in every bucket of a single step is left out of it, and so are starts of ranks where buckets hold more.
    """
    start, end = np.frombuffer(answer.start_ns, "<i8"), np.frombuffer(answer.end_ns, "<i8")
    reported = end > 0
    origin = int(start[reported].min()) if reported.any() else 0
    values = {
        "origin_unix_seconds": origin / 1e9,
        "oldest_step": answer.oldest_step,
        "newest_step": answer.newest_step,
        "first_step": answer.first_step,
        "bucket_steps": answer.bucket_steps,
    }
    columns: dict[str, npt.NDArray[Any]] = {
        "rank": np.frombuffer(answer.ranks, "<u4"),
        "start_seconds": np.where(reported, (start - origin) / 1e9, np.nan).astype("<f8"),
        "end_seconds": np.where(reported, (end - origin) / 1e9, np.nan).astype("<f8"),
        "traced": np.frombuffer(answer.traced, "<u1"),
    }
    if answer.bucket_steps == 1:
        columns["offset_seconds"] = np.frombuffer(answer.offset_seconds, "<f4")
    else:
        columns |= {
            "shortest_seconds": _half(answer.shortest_seconds),
            "longest_seconds": _half(answer.longest_seconds),
            "most_compute_seconds": _half(answer.most_compute_seconds),
        }
    columns |= {
        "duration_seconds": _half(answer.duration_seconds),
        "compute_seconds": _half(answer.compute_seconds),
        "wait_seconds": _half(answer.wait_seconds),
        "host_seconds": _half(answer.host_seconds),
    }
    return values, columns


def _half(seconds: bytes) -> npt.NDArray[np.float16]:
    values = np.frombuffer(seconds, "<f4")
    halves: npt.NDArray[np.float16] = np.minimum(values, np.finfo(np.float16).max).astype(np.float16)
    return halves


def _clock(record: trace_pb2.ClockRecord) -> Clock:
    values = {name: getattr(record, name) for name in Clock.model_fields}
    return Clock(**values | {"drift_ppm": record.drift_ppm if np.isfinite(record.drift_ppm) else None})
