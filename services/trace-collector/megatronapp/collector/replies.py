"""What goes back to a rank on its stream: the newest acknowledgement and the newest control."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from megatronapp.core.errors import UnavailableError
from megatronapp.v1 import trace_pb2

Write = Callable[[trace_pb2.TraceReply], Awaitable[None]]

PAUSE_SECONDS = 0.02
"""Between two replies: what is acknowledged meanwhile goes into the next one."""


@dataclass(eq=False)
class Replies:
    """Acknowledgements of one stream; several that are due at once become one."""

    write: Write
    _pending: int = 0
    _durable: int = 0
    _acknowledged: int = 0
    _error: UnavailableError | None = None
    _control: trace_pb2.TraceControl | None = None
    _closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def expect(self) -> None:
        """A message is under way."""
        self._pending += 1

    def settle(self, seq: int, error: UnavailableError | None = None) -> None:
        """A message is durable, or will not be; after an error nothing more is acknowledged."""
        self._pending -= 1
        self._error = self._error or error
        if not self._error:
            self._durable = max(self._durable, seq)
        self._changed.set()

    def control(self, control: trace_pb2.TraceControl) -> None:
        self._control = control
        self._changed.set()

    def close(self) -> None:
        """The rank has said everything: `run` ends when all that is under way has been acknowledged."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Send what is due. Raises the error of a message that could not be kept.

        It is ended by `close`, not by cancellation: a write to a stream that is cancelled half way leaves it stuck.
        """
        while not self._all_said:
            await self._changed.wait()
            self._changed.clear()
            if await self._send() and not self._closed:
                await asyncio.sleep(PAUSE_SECONDS)

    @property
    def _all_said(self) -> bool:
        return self._closed and not self._pending and self._durable == self._acknowledged and self._error is None

    async def _send(self) -> bool:
        """Whether anything was due."""
        control, self._control = self._control, None
        if control is not None:
            await self.write(trace_pb2.TraceReply(control=control))
        due = self._durable > self._acknowledged
        if due:
            self._acknowledged = self._durable
            await self.write(trace_pb2.TraceReply(ack=trace_pb2.Ack(seq=self._acknowledged, takes_bundles=True)))
        if self._error:
            raise self._error
        return due or control is not None
