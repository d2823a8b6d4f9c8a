"""Scenarios: the jobs of the proving ground, by name. A scenario and a seed make one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.scale import recording
from bench.scale.delivery import Delivery
from bench.scale.faults import Fault, What
from bench.scale.job import Spec
from bench.scale.layout import Layout
from bench.scale.noise import (
    Beside,
    Common,
    DeviceSpread,
    Drift,
    Jitter,
    NodeBursts,
    Noise,
    Outliers,
    Recorded,
)
from bench.scale.seeds import generator
from bench.scale.workload import Workload

HEALTHY_STEPS = 600
ONSET, ONSET_SPREAD = 40, 20
"""A fault in the middle of a run begins in one of these steps: ranks have a history of 20 judged steps by then."""
WINDOW = 60
"""Steps from a fault's onset to the end of its job."""
NODE_WINDOW = 180
"""The same of a whole node, as that usually ends by itself."""
MEMORY_RATIO, STALL_RATIO, LINK_RATIO = 1.5, 1.05, 5.0
"""Sizes of faults that have one size: of the optimizer's time, of a step, of a transfer."""
RESTART_AFTER = 20
"""Steps from a fault's onset to the restart that it outlasts."""


@dataclass(frozen=True)
class Model:
    """How a healthy job behaves."""

    noise: tuple[Noise, ...]
    beside: Beside = field(default_factory=Beside)
    workload: Workload = field(default_factory=Workload)
    experts: int = 1
    """Ranks of an expert group."""
    save_every: int = 0
    restart_every: int = 0
    """Steps of an attempt; 0: half of the jobs restart once."""


QUIET: tuple[Noise, ...] = (DeviceSpread(0.004), Jitter(0.005), Common(0.002))
BURSTS = (*QUIET, NodeBursts(2e-4, 10, 1.05))

MODELS: dict[str, Model] = {
    "quiet": Model(QUIET),
    "outliers": Model((DeviceSpread(0.004), Jitter(0.01), Outliers(0.001, 2.0), Common(0.002))),
    "tails": Model((DeviceSpread(0.004), Jitter(0.008, freedom=3), Common(0.002))),
    "drift": Model((DeviceSpread(0.01), Jitter(0.005), Drift(0.007, 0.95), Common(0.002))),
    "spread": Model((DeviceSpread(0.02), Jitter(0.005), Common(0.002))),
    "bursts": Model(BURSTS, Beside(stall_share=1e-3)),
    "restarts": Model(BURSTS, restart_every=50),
    "sequences": Model(QUIET, workload=Workload(sequence_spread=0.4)),
    "sequences-unreported": Model(QUIET, workload=Workload(sequence_spread=0.4, reported=False)),
    "buckets": Model(QUIET, workload=Workload(sequence_spread=0.4, replica_spread=0.4)),
    "buckets-unreported": Model(QUIET, workload=Workload(sequence_spread=0.4, replica_spread=0.4, reported=False)),
    "experts": Model(QUIET, workload=Workload(expert_spread=0.2), experts=8),
    "last-stage": Model(QUIET, workload=Workload(last_stage=1.3)),
    "garbage": Model(QUIET, Beside(garbage_every=100)),
    "checkpoints": Model(QUIET, save_every=20),
}
"""By name. `recorded` joins them where there is a recording."""


def models(file_name: str = "") -> Mapping[str, Model]:
    """All of them; `recorded` too where a file is named, or lies at its usual place."""
    path = Path(file_name) if file_name else recording.DEFAULT
    if not file_name and not path.exists():
        return MODELS
    sources = (DeviceSpread(0.004), Recorded(recording.load(path)), Common(0.002))
    return MODELS | {"recorded": Model(sources)}


LARGE, PLAIN, INTERLEAVED = "large", "plain", "interleaved"
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    LARGE: tuple(
        Layout(pp=pp, tp=tp, microbatches=m)
        for pp, tp, m in ((8, 8, 32), (4, 8, 16), (1, 8, 16), (16, 8, 32), (1, 1, 16))
    ),
    PLAIN: tuple(
        Layout(pp=pp, tp=tp, dp=ep, ep=ep, microbatches=m)
        for pp, tp, ep, m in ((2, 1, 1, 8), (2, 2, 1, 8), (4, 2, 1, 16), (2, 4, 1, 16), (4, 1, 4, 16), (2, 2, 8, 16))
    ),
    INTERLEAVED: tuple(
        Layout(pp=pp, tp=tp, dp=ep, ep=ep, vpp=2, microbatches=m)
        for pp, tp, ep, m in ((2, 1, 1, 8), (2, 2, 1, 8), (4, 2, 1, 16), (2, 4, 1, 16), (4, 1, 4, 16), (2, 2, 8, 16))
    ),
}
"""By name, of one expert group each; those that do not fit a number of ranks are left out."""


def layouts(world: int, experts: int = 1, kind: str = LARGE) -> list[Layout]:
    """All that have at least two expert groups, of `experts` ranks at least."""
    wanted = [replace(one, dp=max(one.ep, experts), ep=max(one.ep, experts)) for one in LAYOUTS[kind]]
    fitting = [one for one in wanted if world % one.world == 0 and world >= 2 * one.world]
    if not fitting:
        fitting = [Layout(pp=1, dp=experts, ep=experts, microbatches=16)]
    return [replace(one, dp=world // (one.pp * one.tp)) for one in fitting]


@dataclass(frozen=True)
class Trial:
    """One simulated job and what is asked of it; small enough to be sent to another process."""

    suite: str
    scenario: str
    world: int
    step_seconds: float
    seed: int
    steps: int
    model: str = "quiet"
    size: float = 1.05
    recording: str = ""
    layouts: str = LARGE

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.scenario}"


@dataclass(frozen=True)
class Plan:
    """What a trial runs."""

    spec: Spec
    steps: int
    counted_from: int = 0
    delivery: Delivery | None = None
    """None: no message is in trouble, and StepTables go in directly."""


def plan(trial: Trial) -> Plan:
    """Raises KeyError for names that are not known."""
    random = generator(trial.seed, trial.name, trial.world)
    model = models(trial.recording)[trial.model]
    known = layouts(trial.world, model.experts, trial.layouts)
    if trial.scenario == "link":  # in a single group of replicas nobody could tell whose link it is
        known = [layout for layout in known if layout.pp > 1] or known
    layout = known[int(random.integers(len(known)))]
    spec = Spec(layout, trial.step_seconds, model.noise, model.beside, model.workload, save_every=model.save_every)
    if trial.suite == "healthy":
        once = (trial.steps // 2,) if random.random() < 0.5 else ()
        often = range(1 + model.restart_every, trial.steps, model.restart_every) if model.restart_every else ()
        return Plan(replace(spec, restarts=(*often,) or once), trial.steps)
    return FAULTS[trial.scenario](Making(spec, random, trial.size))


@dataclass(frozen=True)
class Making:
    """What a faulty scenario is made of."""

    spec: Spec
    random: np.random.Generator
    size: float

    @property
    def onset(self) -> int:
        return ONSET + int(self.random.integers(ONSET_SPREAD))

    def ranks(self, count: int = 1) -> tuple[int, ...]:
        return tuple(self.random.choice(self.spec.layout.world, count, replace=False).tolist())

    def reader(self) -> int:
        """A rank that reads data: of the first or the last stage."""
        layout = self.spec.layout
        edge = np.flatnonzero(np.isin(layout.pipeline, (0, layout.pp - 1)))
        return int(self.random.choice(edge))

    def plan(self, *faults: Fault, window: int = WINDOW, delivery: Delivery | None = None) -> Plan:
        begins = max(fault.from_step for fault in faults)
        return Plan(replace(self.spec, faults=faults), begins + window, delivery=delivery)


def _slow(making: Making) -> Plan:
    return making.plan(Fault(What.COMPUTE, making.ranks(), making.size, making.onset))


def _first_step(making: Making) -> Plan:
    return making.plan(Fault(What.COMPUTE, making.ranks(), making.size, 1))


def _restart(making: Making) -> Plan:
    """What counts is the page in the new attempt."""
    fault = Fault(What.COMPUTE, making.ranks(), making.size, making.onset)
    again = fault.from_step + RESTART_AFTER
    spec = replace(making.spec, faults=(fault,), restarts=(again,))
    return Plan(spec, again + WINDOW, counted_from=again)


def _intermittent(making: Making) -> Plan:
    return making.plan(Fault(What.COMPUTE, making.ranks(), making.size, making.onset, every=4), window=180)


def _creeping(making: Making) -> Plan:
    return making.plan(Fault(What.COMPUTE, making.ranks(), making.size, making.onset, ramp_steps=100), window=160)


def _two(making: Making) -> Plan:
    first, second = making.ranks(2)
    onset = making.onset
    slow = Fault(What.COMPUTE, (first,), making.size, onset)
    return making.plan(slow, Fault(What.COMPUTE, (second,), 1 + 2 * (making.size - 1), onset + 3))


def _two_kinds(making: Making) -> Plan:
    reader = making.reader()
    (slow,) = (rank for rank in making.ranks(2)[:1])
    slow = slow if slow != reader else (slow + 1) % making.spec.layout.world
    onset = making.onset
    return making.plan(
        Fault(What.COMPUTE, (slow,), making.size, onset), Fault(What.DATA, (reader,), making.size, onset)
    )


def _node(making: Making) -> Plan:
    node = int(making.random.integers(making.spec.layout.nodes))
    return making.plan(
        Fault(What.COMPUTE, making.spec.layout.node_ranks(node), making.size, making.onset), window=NODE_WINDOW
    )


def _of_one_rank(what: What, ratio: float) -> Callable[[Making], Plan]:
    def make(making: Making) -> Plan:
        rank = making.reader() if what is What.DATA else making.ranks()[0]
        return making.plan(Fault(what, (rank,), ratio, making.onset))

    return make


def _switch(making: Making) -> Plan:
    """It slows most ranks: whole nodes, the first 60 % of them."""
    layout = making.spec.layout
    ranks = tuple(np.flatnonzero(layout.node < 0.6 * layout.nodes).tolist())
    return making.plan(Fault(What.SWITCH, ranks, LINK_RATIO, making.onset))


def _messages(delivery: Delivery) -> Callable[[Making], Plan]:
    def make(making: Making) -> Plan:
        return making.plan(Fault(What.COMPUTE, making.ranks(), making.size, making.onset), delivery=delivery, window=40)

    return make


def _silent(making: Making) -> Plan:
    fault = Fault(What.COMPUTE, making.ranks(), making.size, making.onset, silent=True)
    return making.plan(fault, delivery=Delivery(), window=40)


FAULTS: dict[str, Callable[[Making], Plan]] = {
    "slow": _slow,
    "first-step": _first_step,
    "restart": _restart,
    "intermittent": _intermittent,
    "creeping": _creeping,
    "two": _two,
    "two-kinds": _two_kinds,
    "node": _node,
    "memory": _of_one_rank(What.MEMORY, MEMORY_RATIO),
    "host": _of_one_rank(What.HOST, STALL_RATIO),
    "data": _of_one_rank(What.DATA, STALL_RATIO),
    "garbage-collection": _of_one_rank(What.GARBAGE, STALL_RATIO),
    "link": _of_one_rank(What.LINK, LINK_RATIO),
    "switch": _switch,
    "messages-lost": _messages(Delivery(lost=0.02)),
    "messages-late": _messages(Delivery(late=0.02)),
    "messages-doubled": _messages(Delivery(doubled=0.1)),
    "silent": _silent,
}
"""By name: how the plan of a trial is made."""
ONE_SIZE = {
    "memory": MEMORY_RATIO,
    "host": STALL_RATIO,
    "data": STALL_RATIO,
    "garbage-collection": STALL_RATIO,
    "link": LINK_RATIO,
    "switch": LINK_RATIO,
}
MESSAGE_TROUBLE = (*(name for name in FAULTS if name.startswith("messages")), "silent")
