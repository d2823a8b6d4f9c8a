"""Progress of one attempt from its heartbeats: who is alive, how far each has come, since when nothing moves.

A stall is measured in heartbeats, not by a clock: a paused host, a collector that was away or a replayed stream bring
no heartbeats, and silence of all ranks is no hang.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from megatronapp.detector.assemble import Member
from megatronapp.detector.signals.frontier import Blame, Position, Side, blame
from megatronapp.v1 import trace_pb2

NS = 1e-9
PATIENCE_SECONDS = 5.0
PATIENCE_QUANTILE = 0.999
PATIENCE_FACTOR = 4.0
PHASE_PATIENCE_SECONDS = 120.0
"""First step, compilation, checkpoint, evaluation: long silence is usual."""
LONGEST_BEAT_SECONDS = 2.0
"""More time than this between two heartbeats does not count: nobody was there to see a stall."""
SILENT_SECONDS = 4.0
KEPT_PAUSES = 4096
BUSY_SHARE = 0.2
"""A thread that uses less of a processor than this stands still."""
PASSES = ("forward", "backward")


@dataclass(slots=True)
class _Rank:
    frontier: dict[str, Position] = field(default_factory=dict)
    step: int = 0
    activity: str = ""
    phase: int = 0
    heard_unix_ns: int = 0
    closing: bool = False
    lost: bool = False
    telemetry: trace_pb2.GpuTelemetry | None = None
    clock_ns: int = 0
    cpu_ns: int = 0
    computing: bool = False
    """CPU ranks: it is in a pass, and its thread uses the processor."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing moves: since when, and who holds the others up."""

    seconds: float
    step: int
    blamed: tuple[Blame, ...]
    activities: Mapping[int, str]


class Progress:
    """Fed with heartbeats in order of arrival; asked for a stall after each."""

    def __init__(self) -> None:
        self.stalled_seconds = 0.0
        self._ranks: dict[int, _Rank] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._heard_unix_ns = 0
        self._pauses: list[float] = []
        self._order: deque[float] = deque(maxlen=KEPT_PAUSES)

    @property
    def telemetry(self) -> dict[int, trace_pb2.GpuTelemetry]:
        return {rank: state.telemetry for rank, state in self._ranks.items() if state.telemetry is not None}

    @property
    def ended(self) -> bool:
        """All ranks that ever spoke have said goodbye."""
        return bool(self._ranks) and all(state.closing for state in self._ranks.values())

    def lag(self, kind: str) -> int:
        """Completed operations between first and last member, the largest of all communicators of a kind."""
        return max((self._lag(c) for c in self._members if c.partition(":")[0] == kind), default=0)

    def _lag(self, communicator: str) -> int:
        ranks = (self._ranks.get(rank) for rank in self._members[communicator])
        done = [rank.frontier[communicator].completed for rank in ranks if rank and communicator in rank.frontier]
        return max(done) - min(done) if done else 0

    def lose(self, rank: int) -> None:
        """The rank's stream ended without a goodbye."""
        self._ranks.setdefault(rank, _Rank()).lost = True

    def beat(self, rank: int, member: Member, heartbeat: trace_pb2.Heartbeat, unix_ns: int) -> None:
        """Take one heartbeat."""
        state = self._ranks.setdefault(rank, _Rank())
        frontier = self._positions(rank, member, heartbeat)
        moved = frontier != state.frontier or heartbeat.step != state.step or not state.heard_unix_ns
        state.frontier, state.step, state.phase = frontier, heartbeat.step, heartbeat.phase
        state.activity, state.closing, state.lost = heartbeat.activity, heartbeat.closing, False
        state.telemetry = heartbeat.gpu if heartbeat.HasField("gpu") else None
        state.computing = _computes(state, heartbeat) and member.hello.device == trace_pb2.DEVICE_CPU
        state.clock_ns, state.cpu_ns = heartbeat.clock_ns, heartbeat.thread_cpu_ns
        since = (unix_ns - self._heard_unix_ns) * NS if self._heard_unix_ns else 0.0
        state.heard_unix_ns = self._heard_unix_ns = max(unix_ns, self._heard_unix_ns)
        self.stalled_seconds += min(max(since, 0.0), LONGEST_BEAT_SECONDS)
        if moved:
            self._note_pause(self.stalled_seconds)
            self.stalled_seconds = 0.0

    def stall(self) -> Stall | None:
        """Who hangs, once nothing has moved for longer than this job's pauses explain."""
        living = {rank: state for rank, state in self._ranks.items() if not state.closing}
        if len(living) < len(self._ranks) and not any(s.lost for s in living.values()):
            return None
        if not living or self.stalled_seconds <= self._patience(living):
            return None
        silent = frozenset(r for r, s in living.items() if s.lost or self._silent(s))
        blamed = blame({rank: state.frontier for rank, state in living.items()}, self._members, silent)
        blamed = [replace(b, side=Side.DEVICE) if living[b.rank].computing else b for b in blamed if b.rank in living]
        activities = {rank: state.activity for rank, state in living.items()}
        return Stall(self.stalled_seconds, max(s.step for s in living.values()), tuple(blamed), activities)

    def _silent(self, state: _Rank) -> bool:
        return (self._heard_unix_ns - state.heard_unix_ns) * NS > SILENT_SECONDS

    def _patience(self, living: Mapping[int, _Rank]) -> float:
        """max(5 s, 4 × p99.9 of the job's pauses); more while something else goes on than training."""
        if any(state.phase or state.step == 0 for state in living.values()) or not self._pauses:
            return PHASE_PATIENCE_SECONDS
        longest = self._pauses[min(len(self._pauses) - 1, int(PATIENCE_QUANTILE * len(self._pauses)))]
        return max(PATIENCE_SECONDS, PATIENCE_FACTOR * longest)

    def _note_pause(self, seconds: float) -> None:
        if len(self._order) == KEPT_PAUSES:
            self._pauses.remove(self._order[0])
        self._order.append(seconds)
        insort(self._pauses, seconds)

    def _positions(self, rank: int, member: Member, heartbeat: trace_pb2.Heartbeat) -> dict[str, Position]:
        member.name(list(heartbeat.communicators))
        positions = {}
        for f in heartbeat.frontiers:
            if f.peer >= 0 and (f.sending or f.peer != rank):
                ranks: tuple[int, ...] = (rank, f.peer) if f.sending else (f.peer, rank)
                name = f"p2p:{ranks[0]}-{ranks[1]}"
            elif f.communicator in member.groups:
                group = member.groups[f.communicator]
                name, ranks = group.id, group.ranks
            else:
                continue
            self._members[name] = ranks
            positions[name] = Position(f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending)
        return positions


def _computes(state: _Rank, heartbeat: trace_pb2.Heartbeat) -> bool:
    """Whether the training thread has computed since the last heartbeat."""
    passed, used = heartbeat.clock_ns - state.clock_ns, heartbeat.thread_cpu_ns - state.cpu_ns
    return heartbeat.activity in PASSES and passed > 0 and used > BUSY_SHARE * passed
