"""One rank, as its agent knows it: what it says and writes goes in, messages come out."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace import limits
from megatronapp.core.trace.checks import check_communicators
from megatronapp.core.trace.validate import check_fields, check_message
from megatronapp.core.trace.values import Communicator, Evaluation, Identity
from megatronapp.core.trace.wire import from_document, to_proto
from megatronapp.trainer.agent import ras
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.connection import Connection
from megatronapp.trainer.agent.control import ControlRelay
from megatronapp.trainer.agent.encode import StepMessages, encode_all, memory_of
from megatronapp.trainer.agent.files import TraceFile
from megatronapp.trainer.agent.flight_recorder import FlightRecorder
from megatronapp.trainer.agent.heartbeat import BeatClock, heartbeat_of
from megatronapp.trainer.agent.held_steps import HeldSteps
from megatronapp.trainer.agent.hello import RankHello
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.outbox import Outbox, Outgoing, Sink
from megatronapp.trainer.agent.port_telemetry import PortTelemetry, is_enabled
from megatronapp.trainer.agent.process import RankProcess
from megatronapp.trainer.agent.ring import Record
from megatronapp.trainer.agent.scope import KEY as SCOPE
from megatronapp.trainer.agent.scope import RankScope
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.stacks import StackSource, StackTaker, Standing
from megatronapp.trainer.agent.steps import Step, Steps
from megatronapp.trainer.agent.stream import CollectorStream, StreamLoop
from megatronapp.trainer.agent.telemetry import GpuTelemetry
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)
P = ParamSpec("P")
S = TypeVar("S")

FLUSH_SECONDS = 2.0
MAX_EVALUATIONS = 64
"""That wait for the next heartbeat."""
IMPLAUSIBLE = (DataError, ValueError, OverflowError)
"""What an implausible record raises: our own checks, or protobuf's."""


class Rank:
    """From its hello on. All methods are for the agent's thread."""

    def __init__(
        self,
        connection: Connection,
        hello: RankHello,
        segment: Segment,
        streams: StreamLoop,
        access: Access,
        operations: KeptOperations | None = None,
    ) -> None:
        """Takes the segment over, and NCCL's operations."""
        self._connection = connection
        self._rank_hello = hello
        self._segment = segment
        self._operations = operations
        self._names = hello.names
        self._steps = Steps()
        rank = hello.message.identity.rank
        self._held = None if operations is None else HeldSteps(operations, rank, hello.names)
        self._process = RankProcess(connection.pid, segment.thread)
        self._resident_bytes = self._process.resident_bytes()
        self._ports = PortTelemetry(connection.pid) if is_enabled(os.environ, connection.pid) else None
        self._control = ControlRelay(segment, hello.control)
        self._communicators = hello.message.communicators
        self._communicator_bytes = 0
        self._reported = {"summary": 0, "heartbeat": 0}
        self._evaluations: deque[Evaluation] = deque(maxlen=MAX_EVALUATIONS)
        self._closing = False
        self._phase = -1
        self._standing = Standing()
        self._stacks = _stack_taker(connection.pid, hello)
        self._stack: trace_pb2.Stack | None = None
        self._beats = BeatClock(hello.message.identity.rank, time.monotonic())
        self._refused = 0
        uuid = hello.message.placement.gpu_uuid
        self._telemetry = GpuTelemetry(uuid, connection.pid) if uuid else None
        self._outbox = Outbox(self._sinks(streams, access), _plausible(segment.sent))
        self._scope = RankScope(hello.message, segment, connection.say, streams, access)
        if hello.scope is not None:
            self._scope.take(hello.scope)

    @property
    def identity(self) -> Identity:
        return self._rank_hello.message.identity

    @property
    def names(self) -> SpanNames:
        return self._names

    def take(self, key: str, value: Any) -> None:
        """A frame. Raises DataError for one that can't be true; one that is not known is left out."""
        if key == "communicators" and isinstance(value, list):
            self._add_communicators([from_document(Communicator, each) for each in value])
        elif key == "evaluation":
            self._evaluations.append(from_document(Evaluation, value))
        elif key == SCOPE:
            self._scope.take(value)
        elif key == "closing":
            self._closing = True

    def head(self) -> int:
        """How far the rank has written; what it wrote up to there it has told the names of before."""
        return self._segment.ring.head()

    def unread(self, until: int) -> bool:
        """Whether something up to there was not made into messages."""
        return self._segment.ring.position < until or bool(self._held)

    def read(self, until: int) -> list[Step]:
        """The steps that end in what was written up to there, or in a part of it, as `unread` tells. Raises
        SegmentError."""
        steps: list[Step] = []
        for record in self._segment.ring.records(until):
            self._guarded(self._take_record, record, steps)
        return steps if self._held is None else self._release(self._held, steps, time.monotonic())

    def _release(self, held: HeldSteps, steps: list[Step], now_seconds: float) -> list[Step]:
        """Those that go now: with what NCCL has told of them, where they are traced."""
        held.add(steps, now_seconds)
        return held.release(self._communicators, now_seconds)

    def send(self, messages: StepMessages) -> None:
        """A step's, in which what this rank knows beside it is written down."""
        self._guarded(self._send_step, messages)
        self._count_lost()

    @property
    def shows(self) -> bool:
        """Whether a gateway may ask for its model."""
        return self._scope.attached

    def show(self) -> None:
        """What is asked for of its model, and what it shows; several times a tick. Raises SegmentError."""
        self._connection.flush()
        self._scope.tick()

    def tick(self) -> None:
        """Relay what the collector asks for; beat when it is time, or a phase has begun."""
        self._control.relay()
        if self._operations is not None:
            self._operations.read()
        if self._ports is not None:  # a rank that stands still sends no summaries
            self._ports.read(time.monotonic())
        if self._stacks.asking:
            self._stack = self._stacks.poll() or self._stack
        phase, due = self._segment.state.phase, self._beats.due(time.monotonic())
        if due or phase != self._phase or self._stack is not None:
            self._phase = phase
            self._guarded(self._send_heartbeat, closing=False)

    def end(self, *, lives: bool = False) -> threading.Thread:
        """The process is gone, or ends, or `lives` and is not listened to any more: send the rest, for at most
        FLUSH_SECONDS. Returns the thread that does."""
        try:
            until = self.head()
            while self._segment.ring.position < until:
                self._encode(self.read(until))
            if self._held is not None:
                self._encode(self._release(self._held, [], math.inf))
            self._count_lost()
            self._scope.drain()
        except IMPLAUSIBLE as error:
            log.warning("rest_refused", rank=self.identity.rank, reason=str(error))
        closing = self._closing or bool(self._segment.state.closing)
        if closing or not lives:  # of one that was killed: what it was in
            self._guarded(self._send_heartbeat, closing=closing)
        if self._telemetry is not None:
            self._telemetry.close()
        if self._ports is not None:
            self._ports.close()
        self._stacks.close()
        self._end_operations(died=not (lives or closing))
        self._segment.close()
        flushing = threading.Thread(target=self._flush, name="agent-flush", daemon=True)
        flushing.start()
        return flushing

    def _encode(self, steps: Sequence[Step]) -> None:
        for messages in encode_all([(self._names, step) for step in steps]):
            self.send(messages)

    def _end_operations(self, *, died: bool) -> None:
        """NCCL's; of a rank that has died what it was in."""
        if self._operations is None:
            return
        self._guarded(self._operations.read)
        if died and (left := self._operations.open()):
            log.warning("rank_died_in", rank=self.identity.rank, operations=left, lost=self._operations.lost)
        self._operations.close()

    def _flush(self) -> None:
        deadline = time.monotonic() + FLUSH_SECONDS
        self._scope.close(FLUSH_SECONDS / 2)
        self._outbox.close(max(deadline - time.monotonic(), FLUSH_SECONDS / 2))

    def _add_communicators(self, communicators: Sequence[Communicator]) -> None:
        check_communicators([to_proto(each) for each in communicators])
        self._communicators += tuple(communicators)
        self._communicator_bytes += sum(8 * len(each.ranks) + len(each.id) for each in communicators)
        if (
            len(self._communicators) > limits.MAX_COMMUNICATORS
            or self._communicator_bytes > limits.MAX_COMMUNICATOR_BYTES
        ):
            raise DataError(f"more communicators than {limits.MAX_COMMUNICATORS}, or than fit into memory")

    def _take_record(self, record: Record, steps: list[Step]) -> None:
        step = self._steps.feed(record)
        if step is not None:
            steps.append(step)

    def _send_step(self, messages: StepMessages) -> None:
        if messages.reason:
            raise DataError(messages.reason)
        summary, known = messages.summary.summary, len(self._communicators)
        summary.communicators.extend(map(to_proto, self._unreported("summary")))
        summary.memory.CopyFrom(memory_of(self._segment.state, self._resident_bytes))
        if self._operations is not None:
            summary.nccl.extend(self._operations.tallies())
        if self._ports is not None:
            self._ports.read(time.monotonic())
            summary.ports.extend(self._ports.drain())
        for message in (messages.summary, *messages.batches):
            (message.batch if message.HasField("batch") else summary).dropped = self._outbox.dropped
            check_fields(message)
            self._put(message)
            self._reported["summary"] = known

    def _count_lost(self) -> None:
        self._outbox.lost = (
            self._segment.state.lost + self._segment.ring.lost + self._steps.lost + self._refused
        ) % limits.MAX_DROPPED

    def _send_heartbeat(self, *, closing: bool) -> None:
        self._count_lost()
        self._resident_bytes = self._process.resident_bytes()
        evaluations, known = tuple(self._evaluations), len(self._communicators)
        self._evaluations.clear()
        beat = heartbeat_of(
            self._segment,
            self._process,
            self._resident_bytes,
            self._names,
            self._unreported("heartbeat"),
            evaluations,
            self._control.in_force,
            self._telemetry.latest if self._telemetry else None,
            self._outbox.dropped,
            closing=closing,
        )
        if self._operations is not None:
            beat.frontiers.extend(self._operations.frontiers())
            beat.operations_lost = self._operations.lost % limits.MAX_DROPPED
        if not closing:
            self._add_stack(beat)
        message = trace_pb2.TraceMessage(seq=1, heartbeat=beat)
        check_message(message)
        self._put(message)
        self._reported["heartbeat"] = known

    def _add_stack(self, beat: trace_pb2.Heartbeat) -> None:
        """Add what the rank is in, if that was asked for; and ask for it if it has stood still for long enough."""
        if self._stack is not None:
            beat.stack.CopyFrom(self._stack)
            if self._ports is not None:
                still_seconds = time.monotonic() - self._standing.since
                beat.stack.ports.extend(self._ports.standing(time.time_ns() - round(still_seconds * 1e9)))
            self._stack = None
        where = beat.step, beat.phase, beat.activity_since_ns, [f.SerializeToString() for f in beat.frontiers]
        if self._standing.due(where, time.monotonic()) and not self._stacks.asking:
            self._stack = self._stacks.ask()

    def _unreported(self, kind: str) -> tuple[Communicator, ...]:
        """What no message of this kind has told yet; it is counted as told when one was sent."""
        return self._communicators[self._reported[kind] :]

    def _put(self, message: trace_pb2.TraceMessage) -> None:
        self._outbox.put(message)
        self._segment.sent = self._outbox.sent

    def _guarded(self, action: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """What can't be true is dropped, counted, and logged once."""
        try:
            action(*args, **kwargs)
        except IMPLAUSIBLE as error:
            if not self._refused:
                log.warning("record_refused", rank=self.identity.rank, reason=str(error))
            self._refused += 1

    def _hello(self) -> trace_pb2.TraceMessage:
        """Also from the stream's thread."""
        hello: trace_pb2.Hello = to_proto(self._rank_hello.message)
        del hello.communicators[:]
        hello.communicators.extend(map(to_proto, self._communicators))
        return trace_pb2.TraceMessage(hello=hello)

    def _sinks(self, streams: StreamLoop, access: Access) -> list[Sink]:
        sinks: list[Sink] = []
        folder, address = self._rank_hello.folder, self._rank_hello.collector_address
        if folder is not None and (file := self._file(folder)) is not None:
            file.put(Outgoing.of(self._hello()))
            sinks.append(file)
        if address:
            sinks.append(CollectorStream(address, self._hello, self._control.ask, streams, access))
        return sinks

    def _file(self, folder: Path) -> TraceFile | None:
        try:
            return TraceFile(folder, to_proto(self.identity), append=_plausible(self._segment.sent) > 0)
        except UsageError as error:
            log.error("no_trace_file", rank=self.identity.rank, reason=str(error))
            return None


def _stack_taker(pid: int, hello: RankHello) -> StackTaker:
    """Of a rank that can't be asked it is told all the same that it stands still, without its stacks."""
    placement, rank = hello.message.placement, hello.message.identity.rank
    listens = ras.address(os.environ) if ras.asks(rank, placement.local_rank, placement.gpu_uuid) else None
    return StackTaker(
        pid,
        _source(StackSource, pid, hello.stacks),
        _source(FlightRecorder, pid, hello.flight_recorder),
        None if listens is None else ras.NcclRas(listens),
    )


def _source(kind: Callable[[int, Any], S], pid: int, document: Any) -> S | None:
    try:
        return None if document is None else kind(pid, document)
    except (DataError, OSError) as error:
        log.warning("no_stacks", pid=pid, reason=str(error))
        return None


def _plausible(sent: int) -> int:
    return sent if sent < limits.MAX_COUNT >> 1 else 0
