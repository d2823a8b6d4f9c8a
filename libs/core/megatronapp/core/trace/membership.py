"""Who speaks for each rank of a run, and how far it has come: what every reader of RankMessages makes of them. Pure.

Messages may come in any order, twice, or late. What is known afterwards depends on which have come, not on when:
- A newer attempt replaces an older one with all its ranks.
- Of a rank's processes that one is believed whose Hello the collector received last. A message keeps its time of
  arrival through journal and bus. Others are remembered for a while, as their Hello may still be on its way.
- Within a process a heartbeat is newer by its number, a step by its own, and a goodbye is for good.
- A rank is lost until it is heard again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from megatronapp.core.trace.heartbeat import AnyHeartbeat
from megatronapp.core.trace.values import Identity
from megatronapp.core.trace.wire import to_proto
from megatronapp.v1 import trace_pb2

AnyTraceMessage = trace_pb2.TraceMessage | trace_pb2.SentTraceMessage
KEPT_PROCESSES = 4
"""Of one rank. More than two are never about at a time."""


@dataclass(slots=True, eq=False)
class Process:
    """One process of a rank."""

    identity: trace_pb2.Identity
    hello_unix_ns: int = 0
    """When its newest Hello arrived; 0: none has, and the next four are not known."""
    placement: trace_pb2.Placement = field(default_factory=trace_pb2.Placement)
    device: trace_pb2.Device = trace_pb2.DEVICE_UNSPECIFIED
    schedule: trace_pb2.Schedule = field(default_factory=trace_pb2.Schedule)
    attached: trace_pb2.Attached = trace_pb2.ATTACHED_UNSPECIFIED
    heard_unix_ns: int = 0
    heartbeat: trace_pb2.Heartbeat | None = None
    """The newest; None where messages come as SentMessage, whose reader asks for no heartbeat again."""
    heartbeat_seq: int = 0
    heartbeat_unix_ns: int = 0
    memory: trace_pb2.Memory | None = None
    """Told with the newest step, or heartbeat that was read whole, that told any."""
    memory_seq: int = 0
    step: int = 0
    """The newest whose summary has come."""
    dropped: int = 0
    closed: bool = False
    """It has ended in good order."""
    lost_unix_ns: int = 0
    """When its stream was last seen to end without a goodbye; 0: never."""
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = self.identity.rank

    @property
    def lost(self) -> bool:
        """Its stream has ended, and nothing was heard of it since."""
        return self.lost_unix_ns > 0 and self.lost_unix_ns >= self.heard_unix_ns

    def take(self, message: AnyTraceMessage, kind: str | None, received_unix_ns: int, *, lost: bool) -> None:
        if lost:
            self.lost_unix_ns = max(self.lost_unix_ns, received_unix_ns)
        if kind is None:
            return
        if received_unix_ns > self.heard_unix_ns:
            self.heard_unix_ns = received_unix_ns
        if kind == "heartbeat":
            self._apply_heartbeat(message.heartbeat, message.seq, received_unix_ns)
        elif kind == "summary":
            self.step = max(self.step, message.summary.step)
            self._apply_usage(message.summary, message.seq)
        elif kind == "hello" and received_unix_ns >= self.hello_unix_ns:
            self.hello_unix_ns = max(1, received_unix_ns)
            self._apply_hello(message.hello)
        elif kind == "batch":
            self.dropped = max(self.dropped, message.batch.dropped)

    def recall(self, record: trace_pb2.RankRecord) -> None:
        """Fill in what no message has reported."""
        if self.hello_unix_ns == 0:
            self.hello_unix_ns, self.placement, self.device = 1, copied(record.placement), record.device
            self.attached = record.attached
        if self.heard_unix_ns == 0:
            self.heard_unix_ns, self.closed = record.last_seen_unix_ns, record.closed
            if not record.connected and not record.closed:
                self.lost_unix_ns = max(1, self.heard_unix_ns)
        if self.heartbeat is None and record.HasField("heartbeat"):
            self.heartbeat, self.heartbeat_unix_ns = copied(record.heartbeat), record.heartbeat_unix_ns
            self._apply_usage(self.heartbeat, 0)

    def _apply_hello(self, hello: trace_pb2.Hello) -> None:
        self.placement, self.device, self.schedule = copied(hello.placement), hello.device, copied(hello.schedule)
        self.attached = hello.attached

    def _apply_heartbeat(self, heartbeat: AnyHeartbeat, seq: int, received_unix_ns: int) -> None:
        newest = self.heartbeat_seq
        is_newest = seq > newest or (seq == newest and received_unix_ns >= self.heartbeat_unix_ns)
        if is_newest:
            self.heartbeat_seq, self.heartbeat_unix_ns = seq, received_unix_ns
        if heartbeat.closing:
            self.closed = True
        if isinstance(heartbeat, trace_pb2.Heartbeat):
            self.heartbeat = heartbeat if is_newest else self.heartbeat
            self._apply_usage(heartbeat, seq)

    def _apply_usage(self, body: trace_pb2.Heartbeat | trace_pb2.StepSummary, seq: int) -> None:
        if body.dropped > self.dropped:
            self.dropped = body.dropped
        if seq >= self.memory_seq and body.HasField("memory"):
            self.memory, self.memory_seq = copied(body.memory), seq

    @property
    def order(self) -> tuple[int, int, int]:
        """The largest of a rank's processes is believed."""
        return self.hello_unix_ns, self.heard_unix_ns, self.identity.incarnation


class Membership:
    """The ranks of a run's newest attempt."""

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt
        self.recipe: trace_pb2.Recipe | None = None
        """What the attempt was started with, as its lowest rank that tells says."""
        self._recipe_of = (0, 0)
        self._ranks: dict[int, Process] = {}
        self._processes: dict[int, dict[int, Process]] = {}
        """By rank and incarnation."""

    @property
    def ranks(self) -> Mapping[int, Process]:
        """The process of each rank."""
        return self._ranks

    def apply(self, message: trace_pb2.RankMessage) -> Process | None:
        body = message.message
        return self.take(message.identity, body, body.WhichOneof("body"), message.received_unix_ns, lost=message.lost)

    def take(
        self,
        identity: Identity | trace_pb2.Identity,
        message: AnyTraceMessage,
        kind: str | None,
        received_unix_ns: int,
        *,
        lost: bool = False,
    ) -> Process | None:
        """Fold in one message, of this kind: its body, None where it has none. Returns its sender; None when that has
        been replaced, or is of an older attempt."""
        of_rank = self._processes.get(identity.rank) if identity.attempt == self.attempt else None
        process = (of_rank and of_rank.get(identity.incarnation)) or self._sender(identity)
        if process is None:
            return None
        process.take(message, kind, received_unix_ns, lost=lost)
        if kind == "hello" and message.hello.HasField("recipe"):
            self._learn_recipe(identity.rank, received_unix_ns, message.hello.recipe)
        alone = of_rank is not None and len(of_rank) == 1 and self._ranks.get(process.rank) is process
        return process if alone else self._elected(process)

    def recall(self, record: trace_pb2.RankRecord) -> Process | None:
        """Fill in what another has kept of a rank's process, where the messages do not tell (any more)."""
        process = self._sender(record.identity)
        if process is None:
            return None
        process.recall(record)
        return self._elected(process)

    def begin(self, attempt: int) -> bool:
        """Forget the ranks when the attempt is newer than the one that is known; returns whether it is."""
        if attempt <= self.attempt:
            return False
        self.attempt, self.recipe = attempt, None
        self._ranks.clear()
        self._processes.clear()
        return True

    def recipe_of(self, rank: int) -> trace_pb2.Recipe | None:
        """The attempt's recipe, if it came from this rank."""
        return self.recipe if self._recipe_of[0] == -rank else None

    def _sender(self, identity: Identity | trace_pb2.Identity) -> Process | None:
        attempt, rank, incarnation = identity.attempt, identity.rank, identity.incarnation
        if attempt != self.attempt and not self.begin(attempt):
            return None
        known = self._processes.get(rank)
        if known is None:
            known = self._processes[rank] = {}
        process = known.get(incarnation)
        if process is None:
            own = to_proto(identity) if isinstance(identity, Identity) else copied(identity)
            process = known[incarnation] = Process(own)
        return process

    def _elected(self, process: Process) -> Process | None:
        """The process, if it is its rank's."""
        rank = process.rank
        known = self._processes[rank]
        if len(known) == 1:
            self._ranks[rank] = process
            return process
        newest = max(known.values(), key=lambda each: each.order)
        self._ranks[rank] = newest
        if len(known) > KEPT_PROCESSES:
            del known[min(known.values(), key=lambda each: each.order).identity.incarnation]
        return process if newest is process else None

    def _learn_recipe(self, rank: int, received_unix_ns: int, recipe: trace_pb2.Recipe) -> None:
        if self.recipe is None or (-rank, received_unix_ns) >= self._recipe_of:
            self.recipe, self._recipe_of = copied(recipe), (-rank, received_unix_ns)


Body = TypeVar("Body", bound=Message)


def copied(part: Body) -> Body:
    """A part of a message, which keeps none of the rest of it in memory."""
    copy = type(part)()
    copy.CopyFrom(part)
    return copy
