"""The stream to the collector: sent in order, kept until acknowledged, sent again after a lost connection.

One thread serves the streams of all ranks; nobody waits for it. What the ranks have said in a tick goes out in one turn
of its loop, and of one stream in one bundle, where the collector takes bundles: where each stream has threads of its
own, or each message goes alone, the changes of threads cost more than the messages. While the collector is away
messages gather in the bounded buffer, and connecting is tried with exponential back-off.

What the collector says at a stream's end is lost where a message was just being sent: grpc.aio ends the call with the
failure of that write, INTERNAL. The connection after such an end is a careful one, on which nothing is being sent when
an answer may come, the Hello neither: it hears why.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
from grpc import aio

from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.core.tls import ClientTls, handshake_failure, open_channel
from megatronapp.core.token_file import read_token
from megatronapp.core.trace import varint
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.buffer import ResendBuffer
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

Call = Any
"""grpc.aio.StreamStreamCall of TraceMessages, serialized, and TraceReply."""

Kind = grpc.StatusCode | type[Exception]
"""Of failure: its texts may differ each time."""

BUFFER_BYTES = 64 << 20
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 0.2, 10.0
ACK_TIMEOUT_SECONDS = 30.0
SAY_AGAIN_SECONDS = 5.0
GATHER_SECONDS = 0.005
"""What the ranks have said in a tick takes the agent some milliseconds to encode."""
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
)
REFUSAL_SECONDS = 1.0
"""For which a careful connection waits for a refusal, before its Hello and after it: a review of its token by the API
server takes tens of milliseconds."""
MAX_BUNDLE_BYTES = 256 << 10
"""Of the messages in a bundle. One that is larger goes alone."""
_BUNDLE_TAG = bytes([trace_pb2.TraceMessage.BUNDLE_FIELD_NUMBER << 3 | 2])
_MESSAGES_TAG = bytes([trace_pb2.Bundle.MESSAGES_FIELD_NUMBER << 3 | 2])
_STREAM = f"/{trace_pb2.DESCRIPTOR.services_by_name['TraceIngest'].full_name}/Stream"
_END = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out


class StreamLoop:
    """The thread of all streams. `close` it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed: deque[asyncio.Event] = deque()
        self._waking = False
        self._said_at: dict[tuple[str, Kind], float] = {}
        self._thread = threading.Thread(target=self._serve, name="agent-streams", daemon=True)
        self._thread.start()

    def start(self, stream: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        return asyncio.run_coroutine_threadsafe(stream, self._loop)

    def is_news(self, address: str, kind: Kind) -> bool:
        """Whether it is to be said that this collector can't be reached so: the ranks of a node all meet it."""
        now = time.monotonic()
        news = now - self._said_at.get((address, kind), -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS
        if news:
            self._said_at[address, kind] = now
        return news

    def call_soon(self, action: Callable[[], object]) -> None:
        """In its thread, from any other."""
        with contextlib.suppress(RuntimeError):  # closed: nothing is left to be done
            self._loop.call_soon_threadsafe(action)

    def wake(self, changed: asyncio.Event) -> None:
        """Set it in its thread, from any other, in GATHER_SECONDS: with all that are to be set by then."""
        self._changed.append(changed)
        if not self._waking:
            self._waking = True
            self.call_soon(lambda: self._loop.call_later(GATHER_SECONDS, self._wake))

    def close(self) -> None:
        """What still runs is broken off."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wake(self) -> None:
        self._waking = False  # first: what is appended from now on has a call of its own
        while self._changed:
            self._changed.popleft().set()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()


class CollectorStream:
    """A sink. `hello` makes the first message of each connection; `on_control` hears of TraceControl. The loop's thread
    calls them."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], trace_pb2.TraceMessage],
        on_control: Callable[[trace_pb2.TraceControl], None],
        loop: StreamLoop,
        access: Access,
        buffer_bytes: int = BUFFER_BYTES,
        ack_timeout_seconds: float = ACK_TIMEOUT_SECONDS,
    ) -> None:
        self._address = address
        self._hello = hello
        self._on_control = on_control
        self._loop = loop
        self._access = access
        self._ack_timeout = ack_timeout_seconds
        self._buffer = ResendBuffer(buffer_bytes)
        self._acknowledged = threading.Condition()
        """Guards the buffer and what stands below up to the empty line."""
        self._progress_at = time.monotonic()
        self._over = False

        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = self._replied = self._takes_bundles = False
        self._careful = False
        """The last connection's end was not the collector's word."""
        self._reading: asyncio.Task[None] | None = None
        self._running = loop.start(self._run())

    @property
    def dropped(self) -> int:
        return self._buffer.dropped

    def put(self, message: Outgoing) -> None:
        with self._acknowledged:
            if not self._buffer.sent_unacknowledged():
                self._progress_at = time.monotonic()
            self._buffer.put(message)
            silent = time.monotonic() - self._progress_at > self._ack_timeout
        self._loop.wake(self._changed)
        if silent:
            self._loop.call_soon(self._break_off)

    def close(self, timeout_seconds: float) -> None:
        """Give what is left a last chance, but not for longer than this."""
        deadline = time.monotonic() + timeout_seconds
        self._loop.call_soon(self._closing.set)
        with self._acknowledged:
            while len(self._buffer) and not self._over and (left := deadline - time.monotonic()) > 0:
                self._acknowledged.wait(left)
        self._loop.call_soon(self._end)
        concurrent.futures.wait([self._running], max(deadline - time.monotonic(), 0.1))
        self._running.cancel()

    # -- in the loop's thread --

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    def _break_off(self) -> None:
        if self._reading is not None:
            log.warning("collector_silent", address=self._address, seconds=self._ack_timeout)
            self._reading.cancel()

    async def _run(self) -> None:
        try:
            await self._connect_for_ever()
        finally:
            with self._acknowledged:
                self._over = True
                self._acknowledged.notify_all()

    async def _connect_for_ever(self) -> None:
        """Until it is closed: then what is left has one more connection."""
        backoff, last = FIRST_BACKOFF_SECONDS, False
        logged: set[Kind] = set()
        while not (last or self._ended):
            last, careful = self._closing.is_set(), self._careful
            try:
                await self._connect()
            except (grpc.RpcError, OSError, MegatronAppError) as error:
                kind = kind_of(error)
                if self._leave_out_refused(error):
                    self._replied = True
                elif (careful or not self._careful) and (self._replied or kind not in logged):
                    logged.add(kind)
                    if self._loop.is_news(self._address, kind):
                        why = reason(error, self._access.tls)
                        log.warning("collector_unreachable", address=self._address, reason=why)
            backoff = FIRST_BACKOFF_SECONDS if self._replied else min(backoff * 2, LAST_BACKOFF_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff * random.uniform(0.75, 1.25))

    async def _connect(self) -> None:
        """One connection, until it ends."""
        self._replied = self._takes_bundles = False
        async with open_channel(self._address, self._access.tls, CHANNEL_OPTIONS) as channel:
            with self._acknowledged:
                self._buffer.reconnected()
                self._progress_at = time.monotonic()
            stream = channel.stream_stream(_STREAM, None, trace_pb2.TraceReply.FromString)
            call: Call = stream(None, metadata=metadata(self._address, self._access))
            writing = asyncio.create_task(self._write(call))
            self._reading = reading = asyncio.create_task(self._read(call))
            try:
                await asyncio.wait([reading])
            finally:
                self._reading = None
                for task in (writing, reading):
                    task.cancel()
                call.cancel()
                ends = await asyncio.gather(writing, reading, return_exceptions=True)
                self._careful = any(map(_hides_the_answer, ends))
            if not reading.cancelled():
                reading.result()

    async def _write(self, call: Call) -> None:
        """What goes wrong here ends the call, and is told there to who reads."""
        if self._careful:
            await asyncio.sleep(REFUSAL_SECONDS)
        await call.write(self._hello().SerializeToString())
        if self._careful:
            await asyncio.sleep(REFUSAL_SECONDS)
        while not self._ended:
            self._changed.clear()
            if messages := self._next_unsent():
                await call.write(on_the_wire(messages))
            else:
                await self._changed.wait()
        await call.done_writing()

    def _next_unsent(self) -> Sequence[Outgoing]:
        with self._acknowledged:
            if self._careful and self._buffer.sent_unacknowledged():
                return []
            return self._buffer.next_unsent(MAX_BUNDLE_BYTES if self._takes_bundles else 0)

    async def _read(self, call: Call) -> None:
        while (reply := await call.read()) is not _END:
            if reply is None:  # so grpc.aio gives what can't be parsed
                raise DataError("the collector's answer can't be read")
            self._receive(reply)

    def _leave_out_refused(self, error: Exception) -> bool:
        """A message that the collector will never take is dropped and counted; sent again it would end each stream.
        Returns whether one was."""
        if not isinstance(error, aio.AioRpcError):
            return False
        metadata: dict[str, Any] = dict(error.trailing_metadata())  # type: ignore[arg-type]
        with self._acknowledged:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                left_out = self._buffer.leave_out_largest()
            else:
                after = _sequence(metadata.get(REFUSED_AFTER, ""))
                left_out = after is not None and self._buffer.leave_out_after(after)
            self._acknowledged.notify_all()
        if left_out:
            log.error("message_refused", reason=error.details())
        return left_out

    def _receive(self, reply: trace_pb2.TraceReply) -> None:
        self._replied = True
        if reply.WhichOneof("body") == "control":
            self._on_control(reply.control)
            return
        with self._acknowledged:
            self._progress_at = time.monotonic()
            self._takes_bundles = reply.ack.takes_bundles
            self._buffer.acknowledge(reply.ack.seq)
            if not len(self._buffer):
                self._careful = False
                self._acknowledged.notify_all()
            if self._careful:
                self._changed.set()


def metadata(address: str, access: Access) -> list[tuple[str, str]]:
    """Read anew for each connection: projected tokens are replaced on disk as they expire."""
    token = read_token(access.token_file)
    if token:
        access.clear_text.warn(address, access.tls)
    return [("authorization", f"Bearer {token}")] if token else []


def _sequence(text: str) -> int | None:
    """None where it is no number: the collector's word tells nothing then."""
    try:
        return int(text)
    except ValueError:
        return None


def on_the_wire(messages: Sequence[Outgoing]) -> bytes:
    """The message, or a TraceMessage with the bundle of several, put together from what was serialized: protobuf copies
    it so often that bundles of spans took longer than all else about sending them."""
    if len(messages) == 1:
        return messages[0].data
    parts = [part for message in messages for part in (_MESSAGES_TAG, varint.encode(len(message.data)), message.data)]
    return b"".join((_BUNDLE_TAG, varint.encode(sum(map(len, parts))), *parts))


def _hides_the_answer(end: BaseException | None) -> bool:
    """Whether writing or reading ended in such a way that it is not the collector's word. Who reads may hear of a
    failed write before who writes does."""
    return isinstance(end, aio.AioRpcError) and end.code() is grpc.StatusCode.INTERNAL


def kind_of(error: Exception) -> Kind:
    """A collector that stops may cancel its calls first: it is as far away as one whose port is closed."""
    if not isinstance(error, aio.AioRpcError):
        return type(error)
    code = error.code()
    return grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.CANCELLED else code


def reason(error: Exception, tls: ClientTls) -> str:
    if not isinstance(error, aio.AioRpcError):
        return str(error)
    if error.code() is grpc.StatusCode.CANCELLED:
        return "the server cancelled the call: it may be stopping"
    details = error.details() or error.code().name
    return handshake_failure(details, tls) or details
