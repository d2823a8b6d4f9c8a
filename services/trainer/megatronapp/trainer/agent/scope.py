"""What a rank shows of its model, as its agent passes it on: frames out of the bulk ring, documents to and fro."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Hello
from megatronapp.core.trace.wire import to_proto
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.frames import Frame, Parts
from megatronapp.trainer.agent.scope_stream import ScopeStream
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.stream import StreamLoop
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

KEY = "scope"
"""Of the rank's frames, and of those to it."""
NOTHING_ASKED: dict[str, Any] = {"demand": {"taps": []}}
"""What a rank is told when its gateway is gone. It has no revision."""
MAX_ASKED = 256
"""Documents on their way to the rank."""


class RankScope:
    """Of one rank. All methods are for the agent's thread; the stream's own calls come in the loop's."""

    def __init__(
        self, hello: Hello, segment: Segment, say: Callable[[str, Any], None], streams: StreamLoop, access: Access
    ) -> None:
        """`say` sends a document to the rank. Without a gateway nothing is asked of it."""
        self._rank = hello
        self._segment = segment
        self._say = say
        self._streams, self._access = streams, access
        self._hello = scope_pb2.ScopeHello()
        self._asked: deque[dict[str, Any]] = deque(maxlen=MAX_ASKED)
        self._stream: ScopeStream | None = None
        self._parts = Parts()

    @property
    def attached(self) -> bool:
        """Whether there is a stream for it."""
        return self._stream is not None

    def take(self, document: Any) -> None:
        """What the rank has said: hello, sites, event, ack, or what is in force. Raises DataError for what can't be."""
        if not isinstance(document, dict):
            raise DataError("a scope document must be an object")
        try:
            up = json_format.ParseDict(document, scope_pb2.ScopeUp(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise DataError(f"a scope document that is none: {error!s:.200}") from error
        if up.HasField("hello"):
            self._introduce(up.hello)
        elif up.HasField("sites"):
            self._add_sites(up)
        elif self._stream is not None and up.WhichOneof("body") in ("event", "ack", "in_force"):
            if up.HasField("event") and up.event.HasField("state"):
                up.event.state.dropped_frames += self._stream.lost
            self._stream.put(up)

    def tick(self) -> None:
        """Pass on what was asked for, and the frames that the rank has written."""
        while self._asked:
            self._say(KEY, self._asked.popleft())
        self.drain()

    def drain(self) -> None:
        """Raises SegmentError, and DataError for a frame that is none of scope's."""
        ring = self._segment.bulk
        if ring is None or self._stream is None:
            return
        until = ring.head()
        while ring.position < until:
            lost = ring.lost
            for record in ring.records(until):
                whole = self._parts.add(Frame.of(record))
                if whole is not None:
                    self._stream.put_frame(*whole)
            if ring.lost > lost:
                self._stream.overrun(ring.lost - lost)

    def close(self, timeout_seconds: float) -> None:
        """Not the agent's thread."""
        if self._stream is not None:
            self._stream.close(timeout_seconds)

    def _introduce(self, hello: scope_pb2.ScopeHello) -> None:
        hello.identity.CopyFrom(to_proto(self._rank.identity))
        hello.placement.CopyFrom(to_proto(self._rank.placement))
        self._hello = hello
        if self._stream is None and self._access.gateway_address and hello.sites:
            self._stream = ScopeStream(
                self._access.gateway_address,
                lambda: self._hello,
                self._on_message,
                lambda: self._asked.append(NOTHING_ASKED),
                self._streams,
                self._access,
            )

    def _add_sites(self, message: scope_pb2.ScopeUp) -> None:
        """For gateways that know the hello already, and in the hello of those to come."""
        hello = scope_pb2.ScopeHello()
        hello.CopyFrom(self._hello)
        hello.sites.extend(message.sites.sites)
        self._hello = hello
        if self._stream is not None:
            self._stream.put(message)

    def _on_message(self, message: scope_pb2.ScopeDown) -> None:
        document = json_format.MessageToDict(message, preserving_proto_field_name=True)
        self._asked.append(document)
