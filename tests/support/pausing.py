"""A job as its heartbeats show it: starts, steps, checkpoints, evaluations, pauses and hangs, second by second.

Every rank says hello, beats once a second at an instant of its own, beats at once when a phase begins, and sends a
summary of each step, all into a real engine. Time is virtual.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from megatronapp.core.findings import Finding, Kind, State
from megatronapp.core.trace.membership import copied
from megatronapp.detector.engine import Engine
from megatronapp.v1 import trace_pb2
from tests.support.simulated import GPU, START_UNIX_NS, Job, Layout, NoiseModel

NS = 1_000_000_000
STEP, START, PAUSE = trace_pb2.PHASE_UNSPECIFIED, trace_pb2.PHASE_START, trace_pb2.PHASE_PAUSE
CHECKPOINT, EVALUATION = trace_pb2.PHASE_CHECKPOINT, trace_pb2.PHASE_EVALUATION
DEAF_SECONDS = 5.0
"""A rank that serialises its weights may hold the interpreter for so long, and does not beat."""


@dataclass(frozen=True)
class Shown:
    """What a rank's heartbeat tells."""

    step: int = 0
    phase: int = START
    entered: int = 0
    """All-reduces."""
    done: int = 0


@dataclass
class PausingJob:
    """quiet: share of a step in which no rank of a data-parallel job moves. old: the ranks do not tell their phase."""

    layout: Layout
    step_seconds: float
    seed: int = 0
    quiet: float = 0.95
    old: bool = False
    summaries: bool = True
    noise: NoiseModel = GPU
    now: float = 0.0
    found: list[tuple[float, Finding]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        # The pipeline's bubble and the optimizer come on top of what a rank computes.
        bubble = 1 + (self.layout.pp - 1) / self.layout.microbatches
        self.job = Job(self.layout, self.noise, seed=self.seed, compute_seconds=self.step_seconds / (bubble + 0.1))
        self.engine = Engine(self.job.run, "test/simulated", 1)
        self.state, self.own = Shown(), dict[int, Shown]()
        self._offset = np.sort(self.random.random(self.layout.world)).tolist()
        self._order = self.random.permutation(self.layout.world).tolist()
        self._turn = 0
        self._deaf, self._gone = dict[int, float](), set[int]()
        self._moved, self._rate, self._since = 0, 0.0, 0.0
        self._phases: list[trace_pb2.Phase] = [trace_pb2.PHASE_FIRST_STEP]
        self._messages = [self._template(rank) for rank in range(self.layout.world)]
        for hello in self.job.hellos():
            self.engine.feed(hello)

    # ---- what the job does ----

    def start(self, build_seconds: float, first_step_seconds: float) -> None:
        self._run(build_seconds)
        self._enter(step=1)
        self._run(first_step_seconds)
        self._end_step()

    def steps(self, count: int, seconds: float | None = None) -> None:
        """Of half a percent's noise."""
        for _ in range(count):
            self._enter(step=self.state.step + 1, phase=STEP)
            length = (seconds or self.step_seconds) * float(np.exp(self.random.normal(0, 0.005)))
            if self.layout.pp > 1:
                self._move(2 * self.layout.microbatches / length)
            self._run(length * self.quiet)
            self._move(0.0)
            self._enter(entered=self.state.entered + 1)
            self._run(length * (1 - self.quiet))
            self._end_step()

    def checkpoint(self, seconds: float, *, ahead: bool = False) -> None:
        """ahead: only the first rank writes for long; the others wait for it in the next step's all-reduce."""
        self._begin(CHECKPOINT)
        for rank in self.random.choice(self.layout.world, max(1, self.layout.world // 8), replace=False).tolist():
            self._deaf[rank] = self.now + min(DEAF_SECONDS, seconds / 2)
        if ahead:
            self._run(min(1.0, 0.1 * seconds))
            self.own[0] = self.state
            self._enter(step=self.state.step + 1, phase=STEP, entered=self.state.entered + 1)
        self._run(seconds)
        self.own.clear()
        if ahead:
            self._end_step()

    def evaluation(self, seconds: float, *, moving: bool = False) -> None:
        self._begin(EVALUATION)
        self._move(1.0 if moving else 0.0)
        self._run(seconds)
        self._move(0.0)

    def pause(self, seconds: float) -> None:
        self._begin(PAUSE)
        self._run(seconds)

    def leave_behind(self, rank: int, phase: trace_pb2.Phase) -> None:
        """One rank is in this phase from now on, whatever the others do."""
        self.own[rank] = replace(self.state, phase=phase)

    def wait_for(self, rank: int, phase: trace_pb2.Phase, seconds: float) -> None:
        """One rank stays in this phase, and the others stand in the next step's all-reduce."""
        self.leave_behind(rank, phase)
        self._enter(step=self.state.step + 1, phase=STEP, entered=self.state.entered + 1)
        self._run(seconds)

    def lose(self, rank: int) -> None:
        """Its stream ends without a goodbye, and it is not heard of again."""
        self._gone.add(rank)
        identity = self._messages[rank].identity
        gone = trace_pb2.RankMessage(identity=identity, received_unix_ns=self._unix_ns(self.now), lost=True)
        self._feed(gone, self.now)

    def hang(self, phase: trace_pb2.Phase, culprit: int, *, limit_seconds: float) -> float | None:
        """Stop one rank for good, in a step or a phase; returns the seconds until somebody is woken."""
        if phase == STEP:
            self._enter(step=self.state.step + 1, phase=STEP)
            if self.layout.pp > 1:
                self._move(2 * self.layout.microbatches / self.step_seconds)
            self._run(self.step_seconds * self.quiet)
            self._move(0.0)
            self.own[culprit] = self.state
            self._enter(entered=self.state.entered + 1)
        else:
            self._begin(phase)
        stopped, known = self.now, len(self.hangs())
        while self.now - stopped < limit_seconds:
            self._run(1.0)
            if len(self.hangs()) > known:
                return self.hangs()[known][0] - stopped
        return None

    # ---- what was said ----

    def hangs(self) -> list[tuple[float, Finding]]:
        """Pages for a hang, and when they were raised."""
        return [(at, f) for at, f in self.found if f.page and f.kind is Kind.HANG and f.state is State.OPEN]

    def others(self) -> list[Finding]:
        """Pages for anything else, one each."""
        return list({f.id: f for _, f in self.found if f.page and f.kind is not Kind.HANG}.values())

    # ---- how it is reported ----

    def _begin(self, phase: trace_pb2.Phase) -> None:
        self._enter(phase=phase)
        self._phases.append(phase)
        for rank in range(self.layout.world):
            self._beat(rank, self.now)

    def _enter(self, **changes: int) -> None:
        self.state = replace(self.state, **changes)

    def _move(self, rate: float) -> None:
        """Messages a second."""
        self._moved, self._rate, self._since = self._count(self.now), rate, self.now

    def _count(self, now: float) -> int:
        return self._moved + int((now - self._since) * self._rate)

    def _end_step(self) -> None:
        self._enter(phase=STEP, entered=max(self.state.entered, self.state.done + 1), done=self.state.done + 1)
        phases, self._phases = self._phases, []
        if not self.summaries:
            return
        for message in self.job.step(self.state.step):
            message.message.summary.phases[:] = phases
            message.received_unix_ns = self._unix_ns(self.now)
            self._feed(message, self.now)

    def _run(self, seconds: float) -> None:
        """Let time pass: every rank beats when it is its turn."""
        until, world = self.now + seconds, self.layout.world
        while (at := self._turn // world + self._offset[self._turn % world]) <= until:
            self._beat(self._order[self._turn % world], at)
            self._turn += 1
        self.now = until

    def _beat(self, rank: int, at: float) -> None:
        if self._deaf and at < self._deaf.get(rank, 0.0) and rank not in self.own:
            return
        if rank in self._gone:
            return
        message, state = self._messages[rank], self.own.get(rank, self.state)
        heartbeat = message.message.heartbeat
        heartbeat.step, heartbeat.phase = state.step, STEP if self.old else state.phase  # type: ignore[assignment]
        all_reduce = heartbeat.frontiers[0]
        all_reduce.enqueued = all_reduce.started = state.entered
        all_reduce.completed = state.done
        if len(heartbeat.frontiers) > 1:
            sent = heartbeat.frontiers[1]
            sent.enqueued = sent.started = sent.completed = self._count(at)
        message.received_unix_ns = self._unix_ns(at)
        self._feed(copied(message), at)  # an engine keeps what it is fed with

    def _feed(self, message: trace_pb2.RankMessage, at: float) -> None:
        self.found += [(at, finding) for finding in self.engine.feed(message)]

    def _unix_ns(self, at: float) -> int:
        return START_UNIX_NS + int(at * NS)

    def _template(self, rank: int) -> trace_pb2.RankMessage:
        tp, dp, pp = self.layout.place(rank)
        frontiers = [trace_pb2.Frontier(communicator=1, peer=-1, operation="all_reduce")]
        if self.layout.pp > 1:
            sending = pp < self.layout.pp - 1
            peer = self.layout.rank(tp, dp, pp + 1 if sending else pp - 1)
            frontiers.append(trace_pb2.Frontier(peer=peer, sending=sending))
        return self.job.heartbeat(rank, 0, frontiers)


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


@dataclass(frozen=True)
class Habits:
    """How long things take in one job, in seconds: each of a job's checkpoints (evaluations) is 20 % about its usual
    one, one in a hundred takes up to three times as long."""

    start: float
    first_step: float
    step: float
    checkpoint: float
    evaluation: float
    ahead: bool
    """One rank writes for long, while the others go on to the next step."""
    moving: bool
    """Collectives are seen in evaluations."""

    @classmethod
    def draw(cls, random: np.random.Generator) -> Habits:
        start, share = log_uniform(random, 5, 1200), random.uniform(0.1, 0.9)
        return cls(
            start=start * share,
            first_step=start * (1 - share),
            step=log_uniform(random, 0.1, 60),
            checkpoint=log_uniform(random, 1, 600),
            evaluation=log_uniform(random, 5, 900),
            ahead=bool(random.random() < 0.3),
            moving=bool(random.random() < 0.5),
        )


class RandomJob:
    """A job of drawn habits that lives on until it is asked for no more events."""

    def __init__(self, world: int, seed: int, habits: Habits | None = None) -> None:
        self.random = np.random.default_rng((seed, world))
        self.habits = habits or Habits.draw(self.random)
        stages, tensor = [(1, 1), (2, 1), (2, 2), (4, 1)][int(self.random.integers(4))]
        layout = Layout(pp=stages, dp=world // (stages * tensor), tp=tensor)
        self.reported = PausingJob(layout, self.habits.step, seed=seed)
        self.events = 0

    def live(self, events: int) -> None:
        """A start, then two checkpoints to one evaluation, some steps between them."""
        self.reported.start(self.habits.start, self.habits.first_step)
        self.reported.steps(3)
        self.events = 1
        while self.events < events:
            if self.events % 3:
                self.reported.checkpoint(self._about(self.habits.checkpoint), ahead=self.habits.ahead)
            else:
                self.reported.evaluation(self._about(self.habits.evaluation), moving=self.habits.moving)
            self.reported.steps(int(self.random.integers(1, 3)))
            self.events += 1

    def _about(self, usual: float) -> float:
        rare = self.random.uniform(1, 3) if self.random.random() < 0.01 else 1.0
        return usual * rare * float(np.exp(self.random.normal(0, 0.2)))
