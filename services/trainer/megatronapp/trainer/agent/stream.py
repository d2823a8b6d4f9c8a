"""The stream to the collector: sent in order, kept until acknowledged, sent again after a lost connection.

Everything here runs in threads of its own; nobody waits for it. While the collector is away messages gather in the
bounded buffer, and connecting is tried with exponential back-off.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.core.token_file import read_token
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.trainer.agent.buffer import ResendBuffer
from megatronapp.v1 import trace_pb2, trace_pb2_grpc

log = get_logger(__name__)

BUFFER_BYTES = 64 << 20
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 0.2, 10.0
ACK_TIMEOUT_SECONDS = 30.0
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
)


class CollectorStream:
    """A sink. `hello` makes the first message of each connection; `on_control` hears of TraceControl."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], trace_pb2.TraceMessage],
        on_control: Callable[[trace_pb2.TraceControl], None],
        token_file: str = "",
        buffer_bytes: int = BUFFER_BYTES,
        ack_timeout_seconds: float = ACK_TIMEOUT_SECONDS,
    ) -> None:
        self._address = address
        self._hello = hello
        self._on_control = on_control
        self._token_file = token_file
        self._ack_timeout = ack_timeout_seconds
        self._buffer = ResendBuffer(buffer_bytes)
        self._changed = threading.Condition()
        self._connection = 0
        self._call: grpc.Call | None = None
        self._closing = False
        self._heard = False
        self._progress_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="agent-stream", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._buffer.dropped

    def put(self, message: trace_pb2.TraceMessage) -> None:
        with self._changed:
            if not self._buffer.sent_unacknowledged():
                self._progress_at = time.monotonic()
            self._buffer.put(message)
            self._changed.notify_all()
            silent = time.monotonic() - self._progress_at > self._ack_timeout
            call = self._call if silent else None
        if call is not None:
            log.warning("collector_silent", address=self._address, seconds=self._ack_timeout)
            call.cancel()

    def close(self, timeout_seconds: float) -> None:
        """Give what is left a last chance, but not for longer than this."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while len(self._buffer) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            # Ends the requests, and with them the call; one that does not end by itself is broken off.
            self._connection += 1
            call = self._call
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.1))
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        said = False
        while not self._closing:
            try:
                self._connect()
            except (grpc.RpcError, OSError, MegatronAppError) as error:
                if self._leave_out_refused(error):
                    self._heard = True
                elif self._heard or not said:
                    log.warning("collector_unreachable", address=self._address, reason=_reason(error))
                    said = True
            backoff = FIRST_BACKOFF_SECONDS if self._heard else min(backoff * 2, LAST_BACKOFF_SECONDS)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, backoff * random.uniform(0.75, 1.25))

    def _connect(self) -> None:
        """One connection, until it ends."""
        self._heard = False
        with grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            stub = trace_pb2_grpc.TraceIngestStub(channel)
            with self._changed:
                self._connection += 1
                self._buffer.reconnected()
                self._progress_at = time.monotonic()
                call = self._call = stub.Stream(self._requests(self._connection), metadata=self._metadata())
            try:
                for reply in call:
                    self._receive(reply)
            finally:
                with self._changed:
                    self._connection += 1
                    self._changed.notify_all()
                call.cancel()

    def _leave_out_refused(self, error: Exception) -> bool:
        """A message that the collector will never take is dropped and counted; sent again it would end each stream.
        Returns whether one was."""
        if not isinstance(error, grpc.Call):
            return False
        metadata = dict(error.trailing_metadata() or ())
        with self._changed:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                left_out = self._buffer.leave_out_largest()
            else:
                left_out = REFUSED_AFTER in metadata and self._buffer.leave_out_after(int(metadata[REFUSED_AFTER]))
            self._changed.notify_all()
        if left_out:
            log.error("message_refused", reason=error.details())
        return left_out

    def _receive(self, reply: trace_pb2.TraceReply) -> None:
        self._heard = True
        if reply.WhichOneof("body") == "control":
            self._on_control(reply.control)
            return
        with self._changed:
            self._progress_at = time.monotonic()
            self._buffer.acknowledge(reply.ack.seq)
            self._changed.notify_all()

    def _requests(self, connection: int) -> Iterator[trace_pb2.TraceMessage]:
        yield self._hello()
        while True:
            with self._changed:
                while (message := self._buffer.next_unsent()) is None:
                    if self._connection != connection:
                        return
                    self._changed.wait()
                if self._connection != connection:
                    return
            yield message

    def _metadata(self) -> list[tuple[str, str]]:
        """Read anew for each connection: projected tokens are replaced on disk as they expire."""
        token = read_token(self._token_file)
        return [("authorization", f"Bearer {token}")] if token else []


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.Call) else str(error)
