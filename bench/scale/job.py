"""Job: a simulated training job, step by step. The same specification and seed give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.scale import faults as of_faults
from bench.scale.faults import Fault, What
from bench.scale.layout import Layout
from bench.scale.noise import Beside, Noise, total
from bench.scale.seeds import generator
from bench.scale.timeline import Forces, Spent, Timeline
from bench.scale.workload import Work, Workload
from megatronapp.detector.steps import Floats, Ints
from megatronapp.v1 import trace_pb2

START_UNIX_NS = 1_700_000_000 * 10**9
NS = 1_000_000_000
START_SECONDS, RESTART_SECONDS = 60.0, 300.0
WARM_UP_STEPS = 3
"""First steps of an attempt, in which kernels are chosen and memory is allocated."""
WARM_UP = 0.3
SAVE_SECONDS = 10.0
TOKENS, SQUARES = 4096, 4096 * 1024
"""Of a usual microbatch."""
EXPERT_BYTES = 1 << 22


@dataclass(frozen=True)
class Spec:
    """What a job is like."""

    layout: Layout
    step_seconds: float
    noise: tuple[Noise, ...] = ()
    beside: Beside = field(default_factory=Beside)
    workload: Workload = field(default_factory=Workload)
    faults: tuple[Fault, ...] = ()
    restarts: tuple[int, ...] = ()
    """Steps that are the first of a new attempt, on the same devices."""
    save_every: int = 0
    """Steps; a checkpoint is told with the next step. 0: none."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the ranks measured of a step; arrays of (ranks, families) are in nanoseconds."""

    number: int
    attempt: int
    phases: tuple[trace_pb2.Phase, ...]
    began_unix_ns: int
    """When the first rank began."""
    ended_unix_ns: Ints
    """When each rank ended it, and sends its summary."""
    duration_ns: Ints
    total_ns: Ints
    least_ns: Ints
    most_ns: Ints
    tokens: Ints
    """Of each rank's forward passes, as of its backward passes; so squares."""
    squares: Ints
    sent_bytes: Ints
    """Of each rank to the experts of its group."""


class Job:
    """Steps must be asked for in order, from 1."""

    def __init__(self, spec: Spec, seed: int, name: str = "job") -> None:
        self.spec, self.layout, self.seed = spec, spec.layout, seed
        self.timeline = Timeline(spec.layout, spec.step_seconds)
        self.families = self.timeline.families
        self.attempt = 1
        self.clock_ns = START_UNIX_NS + int(START_SECONDS * NS)
        self.next_step = 1
        self._random = generator(seed, name, "steps")
        self._samplers = [
            noise.begin(generator(seed, name, "noise", place), spec.layout) for place, noise in enumerate(spec.noise)
        ]
        self._work = spec.workload.begin(generator(seed, name, "work"), spec.layout)
        self._turn = self._random.integers(0, max(1, spec.beside.garbage_every), spec.layout.world)
        self._first_step = 1
        self._skew = np.zeros(spec.layout.world)
        self._edge = np.isin(spec.layout.pipeline, (0, spec.layout.pp - 1))

    @property
    def run(self) -> str:
        return f"simulated-{self.seed}"

    def step(self) -> Step:
        """The next one."""
        number, self.next_step = self.next_step, self.next_step + 1
        if number in self.spec.restarts:
            self._restart(number)
        work = self._work()
        spent = self.timeline.run(self._forces(number, work))
        return self._measured(number, spent, work)

    def _restart(self, number: int) -> None:
        self.attempt, self._first_step = self.attempt + 1, number
        self.clock_ns += int(RESTART_SECONDS * NS)
        self._skew[:] = 0.0

    # ---- what is drawn ----

    def _forces(self, number: int, work: Work) -> Forces:
        spec, random, n = self.spec, self._random, self.layout.world
        passes = self.layout.microbatches * self.layout.vpp
        jitter = random.standard_normal((2, *self.layout.shape, passes), np.float32).astype(np.float64)
        jitter = np.maximum(1 + spec.beside.microbatch * jitter, 0.2)
        message, reduce = self._transfers(number)
        return Forces(
            start=self._skew,
            log_compute=self._log_compute(number),
            work=work.factor,
            jitter=jitter,
            host=self._host(number),
            data=self._edge * (spec.beside.data * spec.step_seconds * random.exponential(1, n))
            + self._lost(What.DATA, number),
            garbage=self._garbage(number),
            log_optimizer=random.normal(0, spec.beside.optimizer, n) + self._log(What.MEMORY, number),
            log_message=message,
            log_reduce=reduce,
            log_tensor=random.normal(0, spec.beside.transfer, self.layout.shape[:2]),
        )

    def _log_compute(self, number: int) -> Floats:
        log = total(self._samplers, self.layout.world) + self._log(What.COMPUTE, number)
        young = number - self._first_step
        if young < WARM_UP_STEPS:
            log += WARM_UP / (1 + young) * np.abs(self._random.standard_normal(self.layout.world))
        return log

    def _host(self, number: int) -> Floats:
        beside, n = self.spec.beside, self.layout.world
        host = beside.host * self._random.exponential(1, n)
        if beside.stall_share:
            stalls = self._random.random(n) < beside.stall_share
            host += np.where(stalls, beside.stall * self._random.exponential(1, n), 0.0)
        return host * self.spec.step_seconds + self._lost(What.HOST, number)

    def _garbage(self, number: int) -> Floats:
        beside = self.spec.beside
        garbage = self._lost(What.GARBAGE, number)
        if beside.garbage_every:
            turn = (number + self._turn) % beside.garbage_every == 0
            garbage = garbage + turn * (beside.garbage * self.spec.step_seconds)
        return garbage

    def _transfers(self, number: int) -> tuple[Floats, Floats]:
        """(of messages, of collectives). A slow link is slow both ways; a switch is what the ranks' links end at."""
        layout, sigma = self.layout, self.spec.beside.transfer
        message = self._random.normal(0, sigma, (2, layout.world))
        groups = self._random.normal(0, sigma, (layout.pp, 1, layout.tp))
        reduce = np.broadcast_to(groups, layout.shape).reshape(-1).copy()
        link, switch = self._log(What.LINK, number), self._log(What.SWITCH, number)
        arriving = np.roll(link.reshape(layout.shape), -1, axis=0), np.roll(link.reshape(layout.shape), 1, axis=0)
        for direction in range(2):
            message[direction] += np.maximum(link, arriving[direction].reshape(-1)) + switch
        return message, reduce + link + switch

    def _log(self, what: What, number: int) -> Floats:
        found = of_faults.sizes(self.spec.faults, what, number, self.layout.world)
        return np.zeros(self.layout.world) if found is None else found

    def _lost(self, what: What, number: int) -> Floats:
        """Seconds, of a fault whose size is a share of the step."""
        return np.expm1(self._log(what, number)) * self.spec.step_seconds

    # ---- what is told ----

    def _measured(self, number: int, spent: Spent, work: Work) -> Step:
        began, first = self.clock_ns, number == self._first_step
        phases = [trace_pb2.PHASE_FIRST_STEP] if first else []
        if self._follows_save(number) and not first:
            self._save(spent)
            phases.append(trace_pb2.PHASE_CHECKPOINT)
            began += int(SAVE_SECONDS * NS)
        self._skew = spent.end - spent.end.min()
        self.clock_ns = began + int(spent.end.min() * NS)
        squares, load = self._covariates(work)
        return Step(
            number,
            self.attempt,
            tuple(phases),
            began,
            began + _ns(spent.end),
            _ns(spent.duration),
            _ns(spent.total),
            _ns(spent.least),
            _ns(spent.most),
            np.where(squares > 0, self.layout.microbatches * TOKENS // self.layout.vpp, 0),
            squares,
            load,
        )

    def _covariates(self, work: Work) -> tuple[Ints, Ints]:
        layout = self.layout
        squares, sent = np.zeros(layout.world, np.int64), np.zeros(layout.world, np.int64)
        if work.squares is not None:
            of_replica = np.rint(work.squares.sum(axis=1) * SQUARES / layout.vpp).astype(np.int64)
            squares = np.where(self._edge, of_replica[layout.data], 0)
        if work.load is not None:
            sent = np.rint(EXPERT_BYTES * layout.microbatches * (1 + work.load)).astype(np.int64)[layout.data]
        return squares, sent

    def _follows_save(self, number: int) -> bool:
        every = self.spec.save_every
        return every > 0 and number > 1 and (number - 1) % every == 0

    def _save(self, spent: Spent) -> None:
        """Replica 0 writes the weights, the others little; each waits for the last."""
        amount = np.where(self.layout.data == 0, 0.8, 0.04) * SAVE_SECONDS
        write = np.minimum(amount * np.exp(self._random.normal(0, 0.1, self.layout.world)), SAVE_SECONDS)
        for name, seconds in (("checkpoint_write", write), ("checkpoint", SAVE_SECONDS - write)):
            column = self.families.of(name)
            for values in (spent.total, spent.least, spent.most):
                values[:, column] = seconds


def _ns(seconds: Floats) -> Ints:
    return np.rint(seconds * NS).astype(np.int64)
