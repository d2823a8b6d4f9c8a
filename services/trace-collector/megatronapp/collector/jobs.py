"""What is known of jobs now: attempts, their ranks, clocks, and the rows that are not in the store yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from megatronapp.collector.blocks import Buffer, SpanBlock, SummaryBlock
from megatronapp.collector.clocks import Clocks
from megatronapp.collector.received import Received
from megatronapp.core.errors import DataError, ForbiddenError, NotFoundError
from megatronapp.core.trace.evaluations import Evaluations
from megatronapp.core.trace.limits import MAX_COMMUNICATOR_BYTES
from megatronapp.core.trace.membership import Membership, Process
from megatronapp.v1 import trace_pb2

AttemptKey = tuple[str, int]
"""(run, attempt)"""

MAX_OWNERS = 10_000
"""Runs without attempts, since their files have expired, whose job is still known."""


class Lost(NamedTuple):
    """What never reached the collector."""

    events: int = 0
    operations: int = 0
    """Of NCCL, of which there is no record."""


NOTHING_LOST = Lost()


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as it arrived."""

    heartbeat: trace_pb2.Heartbeat
    seq: int
    unix_ns: int

    def equals(self, other: Beat) -> bool:
        """Whether nothing has moved from one to the other."""
        a, b = self.heartbeat, other.heartbeat
        return (a.step, a.phase) == (b.step, b.phase) and a.frontiers == b.frontiers


@dataclass(slots=True)
class Rank:
    """One rank of an attempt: its process, and what that has named."""

    process: Process
    streams: int = 0
    communicators: dict[int, trace_pb2.Communicator] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    """Communicator index → id, as tables want it."""
    communicator_bytes: int = 0

    names: tuple[str, ...] = ()
    """Of its last batch; mostly those of all its batches."""
    since: Beat | None = None
    """The heartbeat that first told where the rank stands now."""
    dropped: int = 0
    """Events that its process has lost, as far as they are counted."""
    operations_lost: int = 0
    """The same of operations of NCCL."""

    def intern_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """These names, as the very tuple that came before when nothing has changed."""
        if names != self.names:
            self.names = names
        return self.names

    @property
    def ended(self) -> bool:
        """It has said goodbye, or the bus has heard that it is lost: nobody waits for it any more."""
        return self.process.closed or self.process.lost

    @property
    def newest(self) -> Beat | None:
        """Its newest heartbeat."""
        process = self.process
        if process.heartbeat is None:
            return None
        return Beat(process.heartbeat, process.heartbeat_seq, process.heartbeat_unix_ns)

    def beat(self) -> None:
        """A heartbeat has come: note since when the rank stands where the newest says."""
        newest = self.newest
        if newest is not None and (self.since is None or not newest.equals(self.since)):
            self.since = newest

    def hello_snapshot(self, recipe: trace_pb2.Recipe | None) -> trace_pb2.Hello:
        """Its Hello with all communicators that it has named since."""
        process = self.process
        return trace_pb2.Hello(
            identity=process.identity,
            placement=process.placement,
            communicators=self.communicators.values(),
            device=process.device,
            schedule=process.schedule,
            recipe=recipe,
            attached=process.attached,
        )

    def learn(self, communicators: Iterable[trace_pb2.Communicator]) -> None:
        """Raises DataError when they are more than a rank can have."""
        for communicator in communicators:
            old = self.communicators.get(communicator.index)
            size = self.communicator_bytes + communicator.ByteSize() - (old.ByteSize() if old else 0)
            if size > MAX_COMMUNICATOR_BYTES:
                raise DataError(f"communicators of more than {MAX_COMMUNICATOR_BYTES >> 20} MiB on one rank")
            self.communicator_bytes = size
            self.communicators[communicator.index] = communicator
            self.ids[communicator.index] = communicator.id


@dataclass(slots=True)
class Attempt:
    run: str
    job: str
    attempt: int
    first_seen_unix_ns: int
    last_seen_unix_ns: int
    sizes: trace_pb2.ParallelSizes = field(default_factory=trace_pb2.ParallelSizes)
    schedule: trace_pb2.Schedule = field(default_factory=trace_pb2.Schedule)
    first_step: int = 0
    last_step: int = 0
    events: int = 0
    dropped: int = 0
    """Events lost on the way, of all processes of all ranks."""
    membership: Membership = field(init=False)
    ranks: dict[int, Rank] = field(default_factory=dict)
    """Those whose Hello has come."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    clocks: Clocks = field(default_factory=Clocks)
    buffer: Buffer = field(default_factory=Buffer)
    writing: Buffer = field(default_factory=Buffer)
    """Rows that the store is taking now; they count as in memory until it has them."""
    changed: bool = True
    """Whether the ranks' Hellos or the counters differ from what the store keeps."""

    def __post_init__(self) -> None:
        self.membership = Membership(self.attempt)

    @property
    def key(self) -> AttemptKey:
        return self.run, self.attempt

    def take(self, received: Received) -> Lost:
        """Apply a new message. Returns how much more the rank has lost."""
        identity, message = received.identity, received.message
        self.last_seen_unix_ns = max(self.last_seen_unix_ns, received.received_unix_ns)
        self.changed = True
        process = self.membership.take(identity, message, received.kind, received.received_unix_ns)
        if process is None or not process.hello_unix_ns:
            return NOTHING_LOST  # A late message of a process that another has replaced.
        rank = self.rank_of(process)
        if received.kind == "hello":
            self.on_hello(rank, message.hello.communicators)
            return NOTHING_LOST
        if received.kind == "batch":
            rank.learn(message.batch.communicators)
            return Lost(events=self._batch(rank, received))
        if received.kind == "summary":
            rank.learn(message.summary.communicators)
            return Lost(events=self._summary(rank, received))
        rank.learn(message.heartbeat.communicators)
        rank.beat()
        self.evaluations.take(message.heartbeat.evaluations)
        operations = max(0, message.heartbeat.operations_lost - rank.operations_lost)
        rank.operations_lost += operations
        return Lost(self._count_dropped(rank, message.heartbeat.dropped), operations)

    def rank_of(self, process: Process) -> Rank:
        """What is known of a rank whose process this is; a new one has named nothing yet."""
        rank = self.ranks.get(process.rank)
        if rank is None or rank.process is not process:
            rank = self.ranks[process.rank] = Rank(process, streams=rank.streams if rank else 0)
        return rank

    def on_hello(self, rank: Rank, communicators: Iterable[trace_pb2.Communicator]) -> None:
        """A rank's process has connected, for the first time or again."""
        process = rank.process
        rank.learn(communicators)
        self.sizes = process.placement.sizes
        self.schedule = process.schedule
        self.clocks.hello(process.rank, process.placement, process.device)

    def lose(self, rank: Rank, unix_ns: int) -> trace_pb2.RankMessage:
        """The rank's stream has ended without a goodbye: returns what the bus is to hear."""
        lost = trace_pb2.RankMessage(identity=rank.process.identity, received_unix_ns=unix_ns, lost=True)
        self.membership.apply(lost)
        self.changed = True
        return lost

    def begin_write(self) -> None:
        """The rows so far are for the store; new ones gather apart. A write that failed takes them along."""
        self.writing = self.writing.join(self.buffer)
        self.buffer = Buffer()
        self.changed = False

    def end_write(self) -> None:
        self.writing = Buffer()

    def undo_write(self) -> None:
        self.changed = True

    def _batch(self, rank: Rank, received: Received) -> int:
        batch, columns, number = received.message.batch, received.columns, received.identity.rank
        step, names = batch.step, rank.intern_names(tuple(batch.names))
        self._widen_steps(step)
        self.events += columns.rows
        self.clocks.add(number, batch, names, columns, rank.ids)
        if columns.rows:
            reading = self.clocks.at(number, columns.first("start_ns"))
            self.buffer.add_spans(SpanBlock(number, step, names, columns, rank.ids, reading), received.size)
        return self._count_dropped(rank, batch.dropped)

    def _summary(self, rank: Rank, received: Received) -> int:
        summary, columns, number = received.message.summary, received.columns, received.identity.rank
        self._widen_steps(summary.step)
        reading = self.clocks.at(number, summary.start_ns)
        on_cpu = rank.process.device == trace_pb2.DEVICE_CPU
        self.buffer.add_summary(SummaryBlock(number, summary, columns, rank.ids, reading, on_cpu), received.size)
        return self._count_dropped(rank, summary.dropped)

    def _widen_steps(self, step: int) -> None:
        self.first_step = min(self.first_step or step, step)
        self.last_step = max(self.last_step, step)

    def _count_dropped(self, rank: Rank, total: int) -> int:
        more = max(0, total - rank.dropped)
        rank.dropped += more
        self.dropped += more
        return more


class Jobs:
    """All attempts, newest last within a run. A run belongs to the job that opened it first.

    `owners` is run → job of what was known before.
    """

    def __init__(self, owners: Mapping[str, str] | None = None) -> None:
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._owners = dict(owners or {})

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    @property
    def owners(self) -> dict[str, str]:
        """Run → job, a copy."""
        return dict(self._owners)

    def owner(self, run: str) -> str | None:
        """The job that the run belongs to; None when nobody has opened it."""
        return self._owners.get(run)

    def check_owner(self, identity: trace_pb2.Identity) -> None:
        """Raises ForbiddenError when the run is another job's."""
        if self._owners.get(identity.run, identity.job) != identity.job:
            raise ForbiddenError(f"run {identity.run!r} belongs to another job than {identity.job}")

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._owners.setdefault(attempt.run, attempt.job)

    def of(self, received: Received) -> Attempt:
        """The attempt a message belongs to, made on its first message. Raises ForbiddenError as check_owner does."""
        identity = received.identity
        self.check_owner(identity)
        key = (identity.run, identity.attempt)
        if key not in self._attempts:
            now = received.received_unix_ns
            self.add(Attempt(identity.run, identity.job, identity.attempt, now, now))
        return self._attempts[key]

    def get(self, run: str, attempt: int = 0) -> Attempt:
        """The attempt, or the run's newest for 0. Raises NotFoundError."""
        numbers = [number for key, number in self._attempts if key == run]
        if not numbers:
            raise NotFoundError(f"no run {run!r} here; list the jobs to see what there is")
        if attempt and attempt not in numbers:
            raise NotFoundError(f"run {run!r} has no attempt {attempt}; it has {sorted(numbers)}")
        return self._attempts[run, attempt or max(numbers)]

    def attempts(self, run: str) -> list[Attempt]:
        """All attempts of a run, ascending. Raises NotFoundError."""
        found = [attempt for attempt in self._attempts.values() if attempt.run == run]
        if not found:
            raise NotFoundError(f"no run {run!r} here; list the jobs to see what there is")
        return sorted(found, key=lambda attempt: attempt.attempt)

    def evaluations(self, last: Attempt) -> Evaluations:
        """Those of a run, up to and in this attempt; each attempt does those again that come after its first step."""
        found = Evaluations()
        for attempt in sorted(self._attempts.values(), key=lambda attempt: attempt.attempt):
            if attempt.run == last.run and attempt.attempt <= last.attempt and attempt.ranks:
                found.forget_from(max(1, attempt.schedule.first_step))
                found.take(attempt.evaluations)
        return found

    def knows(self, identity: trace_pb2.Identity) -> bool:
        """Whether the rank's process has said Hello, and no other has replaced it."""
        attempt = self._attempts.get((identity.run, identity.attempt))
        rank = attempt.ranks.get(identity.rank) if attempt else None
        return rank is not None and rank.process.identity == identity

    def arrival_of_hello(self, identity: trace_pb2.Identity, unix_ns: int) -> int:
        """When a Hello that comes now has arrived: never before the rank's last one, since the newer process is the
        one that is believed, also after a clock was set back."""
        attempt = self._attempts.get((identity.run, identity.attempt))
        rank = attempt.ranks.get(identity.rank) if attempt else None
        return max(unix_ns, rank.process.hello_unix_ns + 1) if rank else unix_ns

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """Drop attempts. Their runs stay their jobs', the newest MAX_OWNERS of them."""
        for key in keys:
            self._attempts.pop(key, None)
        known = {run for run, _ in self._attempts}
        ended = [run for run in self._owners if run not in known]
        for run in ended[: max(0, len(ended) - MAX_OWNERS)]:
            del self._owners[run]
