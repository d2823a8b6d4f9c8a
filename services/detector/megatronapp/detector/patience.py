"""How long a job may stand still before it hangs: phase by phase, by its own longest usual pause.

A pause is one of the job: the longest time of a step, or of a checkpoint, an evaluation, …, in which nothing moved on
any rank. It is never one of a heartbeat: of those there are as many in a step as the job has ranks, and nearly all of
them show that something has just moved.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from megatronapp.v1 import trace_pb2

STEP = trace_pb2.PHASE_UNSPECIFIED
START, COMPILE, PAUSE = trace_pb2.PHASE_START, trace_pb2.PHASE_COMPILE, trace_pb2.PHASE_PAUSE
EVALUATION, CHECKPOINT = trace_pb2.PHASE_EVALUATION, trace_pb2.PHASE_CHECKPOINT
PHASES: tuple[int, ...] = (PAUSE, START, CHECKPOINT, EVALUATION, COMPILE, STEP)
"""By how far they are from an ordinary step. Where ranks are in several, a pause is one of the first of them: a rank
that still writes its checkpoint makes the others wait in the next step's collective, and that is no step's pause."""

FACTOR = 4.0
"""Pauses of one phase vary with data, storage and network, hardly by so much."""
KNOWN_STEPS, SPREAD = 8, 4.0
"""From so many steps on, a step's pause may be twice the longest, as one of a rank that takes twice as long makes it,
and by SPREAD times as much longer as the longest differs from the middle: what varies has not shown its longest."""
KNOWN_RANK_STEPS = 4600
"""One step of a rank in a thousand takes twice as long without a fault: in so many one has been seen (99 %). From then
on no step's pause is expected to be longer than what has been seen, but by as much as that differs from the middle."""
STEP_SECONDS = 5.0
"""Patience in a step is never less: five heartbeats, of which some may come late."""
OTHER_SECONDS = 90.0
"""The same of other phases. They use shared storage, whose clients ask again after 60 s by default (NFS over TCP, S3):
one lost request is no hang."""
FIRST_STEPS_SECONDS = 120.0
"""The same of the steps after the first one until some are known: kernels are chosen and graphs captured in them."""
START_SECONDS = 1800.0
"""Of a start, and of every phase of which nothing is known yet. Ranks that wait longer than 600 s for another are ended
by the communication library's own watchdog, unless somebody expects longer waits and has set it so."""
LEARNT = 3
"""Pauses of a phase after which the longest of them is the usual one."""
KEPT_STEPS, KEPT_OTHER = 256, 16
"""Newest pauses that tell: of steps so many that OUTLIERS are two of them, of what comes once in many steps less."""
OUTLIERS = 1 / 128
"""Share of the steps whose pauses are not usual, so that a hang which resolved itself is not. Other phases are too few
to tell."""


@dataclass(slots=True)
class _History:
    """The newest pauses of a phase, one of each time that the job was in it."""

    kept: int
    outliers: float = 0.0
    """Share that is not usual."""
    order: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)
    longest: float = 0.0
    """Ever, but for what was FACTOR times the usual one: a hang that resolved itself is no pause."""

    def add(self, seconds: float) -> None:
        if len(self.order) == self.kept:
            self.ordered.remove(self.order.popleft())
        self.order.append(seconds)
        insort(self.ordered, seconds)
        usual = self.usual
        if usual is not None:
            self.longest = max(self.longest, self.ordered[bisect_right(self.ordered, FACTOR * usual) - 1])

    @property
    def known(self) -> int:
        return len(self.ordered)

    @property
    def usual(self) -> float | None:
        """The longest of the newest but for the outliers; None while too few are known."""
        known = self.known
        return self.ordered[known - 1 - int(known * self.outliers)] if known >= LEARNT else None

    @property
    def middle(self) -> float:
        return self.ordered[len(self.ordered) // 2]


class Patience:
    """Learns a job's pauses and says how long one may last. All times are in seconds.

    start_seconds: of a start, and of each phase before it is known.
    """

    def __init__(self, start_seconds: float = START_SECONDS) -> None:
        self._start_seconds = start_seconds
        self._histories: dict[int, _History] = {
            STEP: _History(KEPT_STEPS, OUTLIERS),
            **{phase: _History(KEPT_OTHER) for phase in (COMPILE, EVALUATION, CHECKPOINT)},
        }
        self._rank_steps = 0
        self._longest: dict[int, float] = {}
        """Of the step, and of each phase that the job is in."""
        self._first_step = math.nan
        """The longest pause of the attempt's first step."""
        self._seconds: dict[int, float] = {phase: self._learnt(phase) for phase in PHASES}

    def of(self, phases: Iterable[int]) -> float:
        """How long nothing may move while ranks are in these phases: as long as the most patient of them allows, since
        any of them may be what the others wait for. inf in a pause, and where there is no rank."""
        return max((self._seconds[phase] for phase in phases), default=math.inf)

    def note(self, phases: Collection[int], step: int, seconds: float) -> None:
        """Something has moved after so long, in which ranks were in these phases, the foremost of them in this step."""
        phase = next(iter(phases)) if len(phases) == 1 else next((p for p in PHASES if p in phases), None)
        if step > 0 and phase == START and len(phases) == 1:
            self._first_step = max(seconds, 0.0 if math.isnan(self._first_step) else self._first_step)
            self._seconds[STEP] = self._learnt(STEP)
        elif phase is not None and phase in self._histories:
            self._longest[phase] = max(seconds, self._longest.get(phase, 0.0))

    def usual(self, phase: int) -> float | None:
        """The longest usual pause of a phase; None where too few are known."""
        history = self._histories.get(phase)
        return None if history is None or history.usual is None else history.longest

    def ends(self, phase: int, ranks: int) -> None:
        """The foremost of so many ranks begins another step, or none is in the phase any more: its longest pause is
        learnt."""
        if phase in self._longest:
            self.learn(phase, self._longest.pop(phase), ranks)

    def passed(self, steps: int, seconds: float, ranks: int) -> None:
        """So many steps have begun and ended between two heartbeats, so many seconds apart: the pause of none was
        longer. Short steps are known by that before they are known one by one; later it would tell too little."""
        for _ in range(min(steps, LEARNT - self._histories[STEP].known)):
            self.learn(STEP, seconds, ranks)

    def learn(self, phase: int, seconds: float, ranks: int) -> None:
        """The job was in a phase that is learnt, and nothing moved for so long."""
        self._rank_steps += ranks if phase == STEP else 0
        self._histories[phase].add(seconds)
        self._seconds[phase] = self._learnt(phase)

    def _learnt(self, phase: int) -> float:
        if phase == PAUSE:
            return math.inf
        if phase == START:
            return self._start_seconds
        history = self._histories[phase]
        if history.usual is not None:
            return self._of_step(history) if phase == STEP else max(OTHER_SECONDS, FACTOR * history.usual)
        if phase != STEP or math.isnan(self._first_step):
            return self._start_seconds
        # The first step does all that later ones do, and more.
        return min(self._start_seconds, max(FIRST_STEPS_SECONDS, FACTOR * self._first_step))

    def _of_step(self, history: _History) -> float:
        patience, above = FACTOR * (history.usual or 0.0), history.longest - history.middle
        if history.known >= KNOWN_STEPS:
            patience = min(patience, 2 * history.longest + SPREAD * above + STEP_SECONDS)
        if self._rank_steps >= KNOWN_RANK_STEPS:
            patience = min(patience, history.longest + above + STEP_SECONDS)
        return max(STEP_SECONDS, patience)
