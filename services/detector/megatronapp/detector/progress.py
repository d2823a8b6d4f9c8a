"""Progress of one attempt from its heartbeats: who is alive, how far each has come, since when nothing moves.

A stall is measured in heartbeats, not by a clock: a paused host, a collector that was away or a replayed stream bring
no heartbeats, and silence of all ranks is no hang.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from megatronapp.detector import everyone, patience
from megatronapp.detector.members import Member
from megatronapp.detector.operation_times import OperationTimes
from megatronapp.detector.patience import Patience
from megatronapp.detector.positions import Positions
from megatronapp.detector.rank_state import RankState
from megatronapp.detector.signals.devices import of_devices
from megatronapp.detector.signals.frontier import Blame, Side, blame
from megatronapp.detector.signals.halted import of_stopped
from megatronapp.detector.signals.program import calls_of, disagreements
from megatronapp.detector.signals.silence import Silence, silences
from megatronapp.detector.signals.threads import stopped_alone, with_sides
from megatronapp.detector.stall import Stall, with_what_was_said
from megatronapp.v1 import trace_pb2

NS = 1e-9
LONGEST_BEAT_SECONDS = 2.0
"""More time than this between two heartbeats does not count: nobody was there to see a stall."""
SILENT_SECONDS = 4.0
"""Four heartbeats that have not come: one may be lost, and the next two late, without the rank being silent."""
LAGS_SECONDS = 10.0
"""Lags are looked at again after so long: a scrape of /metrics comes as often as anybody likes."""
RENEWAL_SECONDS = 1.0
"""Who is to blame for a stall is looked at again when it has lasted so much longer: as often as each rank speaks."""
CERTAIN_SECONDS = 5.0
"""Members that call different operations under one number do so however long the job's pauses are. They are named when
nothing has moved for so long, as long as the least patience within a step, or when a rank is lost."""
LEAVING_SECONDS = 5.0
"""A rank that has died is the end of its attempt in most jobs: a launcher ends the others, or they raise, within
seconds. It is a hang where no more of them have left for so long."""
STOPPED = "stopped"
"""Of a process, as its agent tells: by SIGSTOP, or a debugger's."""
_PHASE_STEP = trace_pb2.PHASE_STEP


class Progress:
    """Fed with the heartbeats of the ranks' processes, of each process's in order; asked for a stall after each."""

    def __init__(self, start_patience_seconds: float = patience.START_SECONDS) -> None:
        self.stalled_seconds = 0.0
        self._ranks: dict[int, RankState] = {}
        self._heard_unix_ns = 0
        self._patience = Patience(start_patience_seconds)
        self._step = 0
        """Of the foremost rank."""
        self._phases: Counter[int] = Counter()
        """Ranks in each phase. Those that have closed are in none, and what a lost one last said explains nothing."""
        self._closed = self._lost = 0
        self._most_lost = 0
        """Since something has moved last: one whose stream breaks off again and again has left once."""
        self._left_seconds = 0.0
        """Since the newest of them was lost, as stalled_seconds."""
        self._allowed_seconds = math.inf
        """How long nothing may move now."""
        self._stall: Stall | None = None
        self._lags: dict[str, int] | None = None
        self._lags_unix_ns = 0
        """When they were worked out."""
        self._stopped: set[int] = set()
        """Ranks whose processes are, as the kernel says."""
        self._program: tuple[Blame, ...] = ()
        """Who calls something else than the others."""
        self._program_unix_ns = 0
        """When that was looked at."""
        self.operation_times = OperationTimes()
        self._waited_seconds: float | None = None
        """How long those who wait now may do so, by what they wait in; None: not looked at since something moved."""

    @property
    def telemetry(self) -> dict[int, trace_pb2.GpuTelemetry]:
        return {rank: state.telemetry for rank, state in self._ranks.items() if state.telemetry is not None}

    def lags(self) -> Mapping[str, int]:
        """By kind of communicator: completed operations between first and last member, the largest of its kind. Looks
        at all ranks, and is known for some seconds of the job's time therefore."""
        if self._lags is None or self._heard_unix_ns - self._lags_unix_ns >= LAGS_SECONDS / NS:
            self._lags, self._lags_unix_ns = self._newest_lags(), self._heard_unix_ns
        return self._lags

    def _newest_lags(self) -> dict[str, int]:
        done: dict[str, tuple[int, int]] = {}
        for state in self._ranks.values():
            for communicator, completed in state.positions.completed().items():
                least, most = done.get(communicator, (completed, completed))
                done[communicator] = min(least, completed), max(most, completed)
        lags: dict[str, int] = {}
        for communicator, (least, most) in done.items():
            kind = communicator.partition(":")[0]
            lags[kind] = max(lags.get(kind, 0), most - least)
        return lags

    def lose(self, rank: int) -> None:
        """The rank's stream ended without a goodbye."""
        state = self._known(rank)
        self._stands(state, state.phase, closing=state.closing, lost=True)
        self._waited_seconds = None
        if self._lost > self._most_lost:
            self._most_lost, self._left_seconds = self._lost, 0.0

    def beat(self, member: Member, heartbeat: trace_pb2.SentHeartbeat, unix_ns: int) -> None:
        """Take the newest heartbeat of a rank's process."""
        process = member.process
        state = self._ranks.get(process.rank) or self._known(process.rank)
        step, frontiers = heartbeat.step, heartbeat.frontiers
        phase = patience.STEP if heartbeat.phase == _PHASE_STEP else _phase(heartbeat, member)
        known = state.positions
        stands = step == state.step and frontiers == known.frontiers
        lost = process.lost_unix_ns > 0 and process.lost
        # A goodbye moves nobody who waits.
        moved = not stands or (phase != state.phase and not process.closed) or not state.heard_unix_ns
        if not stands or known.groups is not member.groups:
            known.update(member.groups, frontiers)
        self._pass_time(unix_ns, moved=moved)
        since_seconds = (self._heard_unix_ns - state.heard_unix_ns) * NS
        if step > state.step + 1 and since_seconds <= LONGEST_BEAT_SECONDS:
            self._patience.passed(step - state.step - 1, since_seconds, len(self._ranks))
        state.step, state.activity, state.process = step, heartbeat.activity, process
        if heartbeat.HasField("stack"):
            self._see(process.rank, state, with_what_was_said(heartbeat.stack, None if moved else state.stack))
        elif not stands and state.stack is not None:
            self._see(process.rank, state, None)
        if state.phase != phase or state.closing != process.closed or state.lost != lost:
            self._stands(state, phase, closing=process.closed, lost=lost)
        state.unpassed_mark_ns = heartbeat.unpassed_mark_ns
        state.telemetry = heartbeat.gpu if heartbeat.HasField("gpu") else None
        if member.profile.thread_computes:
            state.watch_thread(heartbeat)
        state.heard_unix_ns = self._heard_unix_ns
        if step > self._step:
            self._step = step
            self._patience.ends(patience.STEP, len(self._ranks))
            self._allowed_seconds = self._patience.of(self._phases)

    def _see(self, rank: int, state: RankState, stack: trace_pb2.Stack | None) -> None:
        """What a rank's agent has seen it in."""
        state.stack = stack
        if stack is not None and stack.state == STOPPED:
            self._stopped.add(rank)
        else:
            self._stopped.discard(rank)

    def stood_still(self, seconds: float, step_seconds: Iterable[float]) -> None:
        """Nothing has moved for so long since the heartbeats that were taken last; steps took so long before. A step's
        pause may have been shorter than the step, never longer."""
        for each in step_seconds:
            self._patience.learn(patience.STEP, each, len(self._ranks))
        self._allowed_seconds = self._patience.of(self._phases)
        self.stalled_seconds = seconds

    def stall(self) -> Stall | None:
        """Who hangs, once nothing has moved for longer than the job's usual pauses explain, or it is certain."""
        stalled = self.stalled_seconds
        if stalled <= CERTAIN_SECONDS and stalled <= self._allowed_seconds and not self._lost and not self._closed:
            # As after nearly every heartbeat: all are there, and something moves.
            self._program, self._program_unix_ns, self._stall = (), 0, None
            return None
        late = self.stalled_seconds > self._patience_seconds or self._overdue()
        certain = (late and not self._leaving) or self._differing() or self._halted()
        stands = self._stall is not None and not self._stall.ended
        if self._closed == len(self._ranks) or not certain or (self._over and not stands):
            self._stall = self._death()
        elif self._stall is None or self.stalled_seconds - self._stall.seconds >= RENEWAL_SECONDS:
            self._stall = self._renewed_stall()
        return self._stall

    @property
    def _leaving(self) -> bool:
        """Whether those who are left may be about to end as well. What is told already does not wait for them."""
        return self._stall is None and self._lost > 0 and self._left_seconds <= LEAVING_SECONDS

    def _halted(self) -> bool:
        """Whether the kernel says that somebody's process is stopped: it will not move, however long pauses are."""
        return self.stalled_seconds > CERTAIN_SECONDS and bool(self._stopped)

    def _overdue(self) -> bool:
        """Whether somebody who has died is waited for, or anybody in collectives for longer than these have ever taken,
        with as much again and more. Nothing moves meanwhile: that is looked at once."""
        if self.stalled_seconds <= CERTAIN_SECONDS or self._closed or set(self._phases) != {patience.STEP}:
            return False
        if self._waited_seconds is None:
            blamed = self._locate_stall().blamed
            self._waited_seconds = max((self._may_wait(b) for b in blamed), default=math.inf)
        return self.stalled_seconds > self._waited_seconds

    def _may_wait(self, blame: Blame) -> float:
        if self._died(blame.rank):
            return CERTAIN_SECONDS
        missing = blame.side in (Side.HOST, Side.DEVICE) and blame.message is None
        return self.operation_times.patience(blame.communicator, blame.operation) if missing else math.inf

    def _died(self, rank: int) -> bool:
        """Its stream broke off, and not that of others of its node: its process has ended without a goodbye."""
        state = self._ranks.get(rank)
        if state is None or not state.lost or not state.node:
            return False
        others = [other for other in self._ranks.values() if other is not state and other.node == state.node]
        return any(not (other.lost or other.closing or self._silent(other)) for other in others)

    @property
    def _over(self) -> bool:
        return self._lost > 0 and self._closed + self._lost == len(self._ranks)

    def _death(self) -> Stall | None:
        """What has ended the attempt, where that can be told, once nobody is left of it and somebody died."""
        if not self._over:
            return None
        known = self._everyone()
        self._program = tuple(disagreements(calls_of(known.frontiers), known.members))
        activities = {rank: state.activity for rank, state in self._ranks.items()}
        blamed = self._program or self._who_died(known, activities)
        if not blamed:
            return None
        first = self._ranks[blamed[0].rank]
        silent = {rank: Silence.ENDED for rank, state in self._ranks.items() if state.lost and not state.closing}
        return Stall(self.stalled_seconds, first.step, blamed, activities, first.phase, silences=silent, ended=True)

    def _who_died(self, known: everyone.Everyone, activities: Mapping[int, str]) -> tuple[Blame, ...]:
        """Whose death has ended the attempt: all others have said goodbye in operations in which they waited for it,
        since their library raises when a connection breaks (gloo). One that was in it too may have been ended by it,
        and is not named; nor is anybody where the job was about to end, or several died."""
        if self._lost != 1:
            return ()
        dead, lost = next((rank, state) for rank, state in self._ranks.items() if state.lost and not state.closing)
        apart = max(abs(state.step - lost.step) for state in self._ranks.values())
        if apart > 1 or any(state.phase == patience.PAUSE for state in self._ranks.values()):
            return ()
        blamed = tuple(blame(known.frontiers, known.members, frozenset({dead}), activities))
        return blamed if [(b.rank, b.side) for b in blamed] == [(dead, Side.HOST)] else ()

    def _differing(self) -> bool:
        """Whether somebody calls something else than the others. Looks at all ranks, once in RENEWAL_SECONDS therefore,
        and not before it can be told."""
        if self.stalled_seconds <= CERTAIN_SECONDS and not self._lost:
            self._program, self._program_unix_ns = (), 0
        elif (self._heard_unix_ns - self._program_unix_ns) * NS >= RENEWAL_SECONDS:
            self._compare(self._everyone())
            self._program_unix_ns = self._heard_unix_ns
        return bool(self._program)

    def _compare(self, known: everyone.Everyone) -> None:
        """Note who calls something else. One that ends gives up what it was in, and what was seen before holds. Where a
        rank was lost before all had the time to tell, those who have told are not taken for all."""
        awaited = known.members if self.stalled_seconds <= CERTAIN_SECONDS else {}
        self._program = tuple(disagreements(calls_of(known.frontiers), awaited)) or self._program

    def _everyone(self) -> everyone.Everyone:
        return everyone.of({rank: state.positions for rank, state in self._ranks.items()})

    @property
    def _patience_seconds(self) -> float:
        """A job that ends in good order does not do so at once: who is left may write what the others wait for no more,
        for as long as in a phase of which nothing is known."""
        ends = self._closed and not self._lost
        return max(self._allowed_seconds, self._patience.of((patience.START,))) if ends else self._allowed_seconds

    def _renewed_stall(self) -> Stall:
        """Who is ended while the others stand (by a watchdog, a person, one after the other) has not brought them to a
        stand: what was seen while they all were there holds. Costs as much as there are ranks."""
        known = self._stall
        gone = frozenset(r for r, s in self._ranks.items() if s.closing or s.lost or self._silent(s))
        if known is not None and known.blamed and not gone <= known.gone:
            stacks = self._stacks_of(known.blamed)
            return replace(known, seconds=self.stalled_seconds, stacks=stacks, ras=self._ras() or known.ras)
        found = self._locate_stall()
        return replace(found, gone=gone, stacks=self._stacks_of(found.blamed), ras=self._ras())

    def _stacks_of(self, blamed: Iterable[Blame]) -> dict[int, trace_pb2.Stack]:
        ranks = {b.rank: self._ranks.get(b.rank) for b in blamed}
        return {rank: state.stack for rank, state in ranks.items() if state is not None and state.stack is not None}

    def _ras(self) -> str:
        """Of the first rank whose agent has it."""
        return next(
            (self._ranks[rank].said_of_job for rank in sorted(self._ranks) if self._ranks[rank].said_of_job), ""
        )

    def _locate_stall(self) -> Stall:
        living = {rank: state for rank, state in self._ranks.items() if not state.closing}
        silent = frozenset(r for r, s in living.items() if s.lost or self._silent(s))
        computing = frozenset(r for r, s in living.items() if s.computing)
        passing = frozenset(r for r, s in living.items() if s.passing)
        standing = frozenset(r for r, s in living.items() if s.device_stands)
        known = self._everyone()
        self._compare(known)
        frontiers = {rank: known.frontiers[rank] for rank in living}
        of_living = {name for frontier in frontiers.values() for name in frontier}
        members = {name: ranks for name, ranks in known.members.items() if name in of_living}
        activities = {rank: state.activity for rank, state in living.items()}
        at = {rank: state.whereabouts for rank, state in living.items()}
        blamed = list(self._program) or blame(frontiers, members, silent, activities, at)
        if by_itself := stopped_alone(blamed, computing, passing):
            blamed = blame(frontiers, members, silent | by_itself, activities, at)
        unheard = tuple(sorted({b.rank for b in blamed} - self._ranks.keys()))
        if Side.PROGRAM not in {b.side for b in blamed}:
            blamed = of_devices(with_sides(blamed, computing, passing), standing)
        blamed = of_stopped(
            [b for b in blamed if b.rank in living or b.side is Side.PROGRAM], self._stopped & living.keys()
        )
        foremost = max(living.values(), key=lambda s: s.step)
        usual = self._patience.usual(foremost.phase)
        nodes = {rank: state.node for rank, state in living.items()}
        lost = [rank for rank, state in living.items() if state.lost]
        return Stall(
            self.stalled_seconds,
            foremost.step,
            tuple(blamed),
            activities,
            foremost.phase,
            usual,
            unheard,
            silences=silences(silent, lost, nodes, living),
        )

    def _known(self, rank: int) -> RankState:
        if rank not in self._ranks:
            state = self._ranks[rank] = RankState(Positions(rank, {}))
            self._count(state, +1)
            self._allowed_seconds = self._patience.of(self._phases)
        return self._ranks[rank]

    def _stands(self, state: RankState, phase: int, *, closing: bool, lost: bool) -> None:
        """Note where a rank stands now."""
        if (state.phase, state.closing, state.lost) == (phase, closing, lost):
            return
        self._count(state, -1)
        state.phase, state.closing, state.lost = phase, closing, lost
        self._count(state, +1)
        self._allowed_seconds = self._patience.of(self._phases)

    def _count(self, state: RankState, one: int) -> None:
        if state.closing:
            self._closed += one
        elif state.lost:
            self._lost += one
        else:
            self._phases[state.phase] += one
            if not self._phases[state.phase]:
                del self._phases[state.phase]
                if state.phase != patience.STEP:
                    self._patience.ends(state.phase, len(self._ranks))

    def _pass_time(self, unix_ns: int, *, moved: bool) -> None:
        if unix_ns > self._heard_unix_ns:
            if self._heard_unix_ns:
                seconds = min((unix_ns - self._heard_unix_ns) * NS, LONGEST_BEAT_SECONDS)
                self.stalled_seconds += seconds
                self._left_seconds += seconds
            self._heard_unix_ns = unix_ns
        if moved:
            self._patience.note(self._phases, self._step, self.stalled_seconds)
            self.stalled_seconds, self._most_lost, self._waited_seconds = 0.0, 0, None

    def _silent(self, state: RankState) -> bool:
        return (self._heard_unix_ns - state.heard_unix_ns) * NS > SILENT_SECONDS


def _phase(heartbeat: trace_pb2.SentHeartbeat, member: Member) -> int:
    """What the rank is in. One that does not tell is starting until it is past its first step; a phase that this
    version does not know is no ordinary step, and is waited for as long as a start."""
    phase = heartbeat.phase
    if phase == trace_pb2.PHASE_UNSPECIFIED:
        return patience.START if heartbeat.step <= member.process.schedule.first_step else patience.STEP
    return phase if phase in patience.PHASES else patience.START
