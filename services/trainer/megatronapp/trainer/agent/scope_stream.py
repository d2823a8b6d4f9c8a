"""The stream to the gateway, one for each rank that shows its model: what was asked for comes down, frames go up.

Frames are not sent again: they wait in a bounded queue whose oldest ones give way, which is told of, and while no
gateway is there they are dropped. Events are: what a gateway lacks goes out when it comes back (event_log.py). Values
come from the rank in float32 and are quantised here, in a thread beside the loop's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import grpc
from grpc import aio

from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.core.scope.frame import MAX_SHARD_BYTES, Dtype, Kind, pack, unpack
from megatronapp.core.scope.quantize import decode, encode
from megatronapp.core.tls import open_channel
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.event_log import EventLog
from megatronapp.trainer.agent.lost_frames import ANY_TAP, NOT_SENT, OVERWRITTEN, LostFrames
from megatronapp.trainer.agent.shown_frames import ShownFrames
from megatronapp.trainer.agent.stream import (
    CHANNEL_OPTIONS,
    FIRST_BACKOFF_SECONDS,
    LAST_BACKOFF_SECONDS,
    Call,
    StreamLoop,
    metadata,
    reason,
)
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

MAX_WAITING_FRAMES = 512
MAX_WAITING_BYTES = 128 << 20
MAX_WAITING_MESSAGES = 1024
"""States and acknowledgements."""
_STREAM = f"/{scope_pb2.DESCRIPTOR.services_by_name['ScopeIngest'].full_name}/Attach"
_END = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out


class ScopeStream:
    """`hello` makes the first message of each connection, `on_message` hears of what comes; both in the loop's thread,
    as is `on_lost`."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], scope_pb2.ScopeHello],
        on_message: Callable[[scope_pb2.ScopeDown], None],
        on_lost: Callable[[], None],
        loop: StreamLoop,
        access: Access,
    ) -> None:
        self._address = address
        self._hello = hello
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = loop
        self._access = access
        self._guard = threading.Lock()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._frame_bytes = 0
        self._messages: deque[scope_pb2.ScopeUp] = deque(maxlen=MAX_WAITING_MESSAGES)
        self._events = EventLog()
        self._shown = ShownFrames()
        self._quantizers: Mapping[int, str] = {}
        self._connected = self._ended = False
        self._changed = asyncio.Event()
        self._lost = LostFrames()
        self._running = loop.start(self._connect_for_ever())

    def put_frame(self, tap: int, frame: bytes) -> None:
        """From any thread. What nobody asks for is dropped."""
        with self._guard:
            if not self._connected or tap not in self._quantizers:
                return
            self._line_up(tap, frame)
        self._loop.wake(self._changed)

    def overrun(self, records: int) -> None:
        """From any thread: so many parts of frames were overwritten before they were read."""
        with self._guard:
            if self._connected and self._quantizers:
                self._lose(ANY_TAP, records, OVERWRITTEN)
        self._loop.wake(self._changed)

    @property
    def lost(self) -> int:
        """Frames, or parts of them, that were asked for and are gone."""
        return self._lost.count

    def _line_up(self, tap: int, frame: bytes) -> None:
        """Guarded."""
        self._frames.append((tap, frame))
        self._frame_bytes += len(frame)
        while len(self._frames) > MAX_WAITING_FRAMES or self._frame_bytes > MAX_WAITING_BYTES:
            oldest, left_out = self._frames.popleft()
            self._frame_bytes -= len(left_out)
            self._lose(oldest, 1, NOT_SENT)

    def _lose(self, tap: int, count: int, why: str) -> None:
        """Guarded."""
        event = self._lost.add(tap, count, why, self._hello().identity.rank)
        if event is not None:
            self._events.add(event)

    def put(self, message: scope_pb2.ScopeUp) -> None:
        """From any thread. While no gateway is there states and acknowledgements are dropped: the next hello tells how
        things are. Sites wait: a hello that is on its way may be without them."""
        with self._guard:
            if message.HasField("event") and not message.event.HasField("state"):
                self._events.add(message.event)
            elif self._connected or message.HasField("sites"):
                self._messages.append(message)
        self._loop.wake(self._changed)

    def close(self, timeout_seconds: float) -> None:
        """What is left goes out, for at most so long."""
        deadline = time.monotonic() + timeout_seconds
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._loop.call_soon(self._end)
        concurrent.futures.wait([self._running], max(deadline - time.monotonic(), 0.1))
        self._running.cancel()

    def _left(self) -> bool:
        with self._guard:
            return self._connected and bool(self._frames or self._messages or self._events.waits)

    # -- in the loop's thread --

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    async def _connect_for_ever(self) -> None:
        backoff, logged = FIRST_BACKOFF_SECONDS, False
        while not self._ended:
            accepted = False
            try:
                accepted = await self._connect()
            except (grpc.RpcError, OSError, MegatronAppError) as error:
                if not logged:
                    log.warning("gateway_unreachable", address=self._address, reason=reason(error, self._access.tls))
                    logged = True
            backoff = FIRST_BACKOFF_SECONDS if accepted else min(backoff * 2, LAST_BACKOFF_SECONDS)
            logged = logged and not accepted
            if not self._ended:
                await asyncio.sleep(backoff * random.uniform(0.75, 1.25))

    async def _connect(self) -> bool:
        """One connection, until it ends; whether the gateway has taken the hello."""
        async with open_channel(self._address, self._access.tls, CHANNEL_OPTIONS) as channel:
            stream = channel.stream_stream(_STREAM, scope_pb2.ScopeUp.SerializeToString, scope_pb2.ScopeDown.FromString)
            call: Call = stream(None, metadata=metadata(self._address, self._access))
            reading = asyncio.create_task(self._read(call))
            writing = asyncio.create_task(self._write(call))
            try:
                await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
                accepted = self._disconnected()
                if self._ended:
                    await _until_read(call, reading)
            finally:
                for task in (reading, writing):
                    task.cancel()
                call.cancel()
                results = await asyncio.gather(reading, writing, return_exceptions=True)
        for result in results:
            if isinstance(result, grpc.RpcError | OSError | MegatronAppError) and not (accepted or self._ended):
                raise result
        return accepted

    def _disconnected(self) -> bool:
        with self._guard:
            accepted, self._connected = self._connected, False
            self._frames.clear()
            self._shown.clear()
            self._messages.clear()
            self._frame_bytes, self._quantizers = 0, {}
        self._on_lost()
        return accepted

    async def _read(self, call: Call) -> None:
        while (message := await call.read()) is not _END:
            body = message.WhichOneof("body")
            if body == "accepted":
                with self._guard:
                    self._connected = True
                    self._events.begin(message.accepted.received_events)
                self._changed.set()
            elif body == "demand":
                with self._guard:
                    self._quantizers = {tap.id: tap.quantizer or "asinh" for tap in message.demand.taps}
                    self._lost.renew()
                    for tap, frame in self._shown.ask(message.demand.taps):
                        self._line_up(tap, frame)
                self._changed.set()
            if body in ("demand", "command"):
                self._on_message(message)

    async def _write(self, call: Call) -> None:
        await call.write(scope_pb2.ScopeUp(hello=self._hello()))
        while not self._ended:
            self._changed.clear()
            message = await self._next()
            if message is not None:
                await call.write(message)
            elif not self._left():
                await self._changed.wait()

    async def _next(self) -> scope_pb2.ScopeUp | None:
        with self._guard:
            if self._messages:
                return self._messages.popleft()
            if self._connected and (event := self._events.next()) is not None:
                return event
            if not self._frames:
                return None
            tap, frame = self._frames.popleft()
            self._frame_bytes -= len(frame)
            quantizer = self._quantizers.get(tap)
        if quantizer is None:
            return None
        try:
            unpacked = unpack(frame, MAX_SHARD_BYTES)
            with self._guard:
                self._shown.keep(tap, unpacked, frame)
            packed = await asyncio.to_thread(requantized, frame, quantizer)
        except DataError as error:
            log.warning("frame_refused", tap=tap, reason=str(error))
            return None
        return scope_pb2.ScopeUp(frame=scope_pb2.ScopeFrame(tap=tap, frame=packed))


async def _until_read(call: Call, reading: asyncio.Task[None]) -> None:
    """Until the gateway has all that was written: a call that is cancelled takes back what it has not read yet."""
    with contextlib.suppress(Exception):
        await call.done_writing()
        await asyncio.wait([reading])


def requantized(data: bytes, quantizer: str) -> bytes:
    """The frame with its values by this quantiser, and their range; of frames that hold no values the same. Raises
    DataError."""
    frame = unpack(data, MAX_SHARD_BYTES)
    if frame.kind is not Kind.TENSOR or frame.dtype is not Dtype.F32:
        return data
    made = encode(decode(frame), quantizer)
    return pack(
        replace(
            made,
            subscription=frame.subscription,
            sequence=frame.sequence,
            captured_unix_us=frame.captured_unix_us,
            step=frame.step,
            microbatch=frame.microbatch,
            layer=frame.layer,
            sections={**frame.sections, **made.sections},
        )
    )
