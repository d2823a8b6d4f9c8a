"""The fault matrix: every kind of fault, small and large, in every layout, two faults at once, and clean runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from megatronapp.core.scenario import Fault, FaultKind, Scenario

FROM_STEP, HANG_STEP = 36, 51
"""35 clean steps before every fault. A hang comes later: in its first seconds, of which hardly a heartbeat has told, a
job may stand still for two minutes."""
FLOOR_RATIO = 1.2
"""Slow compute that must be found. Four ranks on two cores waver by more than the smallest size that is played."""

LAYOUTS: dict[str, tuple[str, ...]] = {
    "DP4": (),
    "DP4 sharded optimizer": ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
    "PP2 x DP2": ("--pipeline-model-parallel-size=2",),
    "TP2 x DP2": ("--tensor-model-parallel-size=2",),
    "TP2 x DP2 sequence-parallel": ("--tensor-model-parallel-size=2", "--sequence-parallel"),
    "PP4 (DP1)": ("--pipeline-model-parallel-size=4",),
    "PP2 x TP2 (DP1)": ("--pipeline-model-parallel-size=2", "--tensor-model-parallel-size=2"),
    "PP2 x VPP2 x DP2": ("--pipeline-model-parallel-size=2", "--num-virtual-stages-per-pipeline-rank=2"),
    "EP2 x DP4": ("--num-experts=4", "--expert-model-parallel-size=2", "--disable-bias-linear"),
}
"""Four ranks each, steps of about 0.1 s: all that the trainer can do on CPUs. Context parallelism needs GPUs."""
COMBINED: dict[str, tuple[str, ...]] = {
    "PP2 x DP2 sharded optimizer": (*LAYOUTS["PP2 x DP2"], *LAYOUTS["DP4 sharded optimizer"]),
    "PP2 x TP2 sequence-parallel": (*LAYOUTS["PP2 x TP2 (DP1)"], "--sequence-parallel"),
    "PP2 x VPP2 x TP2": (*LAYOUTS["PP2 x VPP2 x DP2"], "--tensor-model-parallel-size=2"),
    "PP2 x EP2 x DP2": (*LAYOUTS["PP2 x DP2"], *LAYOUTS["EP2 x DP4"]),
}
"""What is chosen along more than one axis at once, with a fault of each kind."""

EXPECTED: dict[FaultKind, tuple[str, frozenset[str]]] = {
    FaultKind.SLOW_COMPUTE: ("slow_gpu", frozenset({"compute"})),
    FaultKind.HOST_STALL: ("slow_host", frozenset({"host_cpu"})),
    FaultKind.DATA_STALL: ("slow_host", frozenset({"data_loading"})),
    FaultKind.LATE_LINK: ("slow_link", frozenset({"nic", "nvlink", "unknown"})),
    FaultKind.HANG: ("hang", frozenset({"compute", "host_cpu"})),
}
"""What the platform must say of each kind of fault."""
OVERLAPPED = FaultKind.LATE_LINK
"""This is also a host that stands still where the schedule overlaps its messages, as interleaved ones do: over gloo,
which can't hold a message back, the rank waits before it hands each of them over."""

SLOW_RATIOS = (1.1, 1.2, 1.4)
STALL_SECONDS = {
    FaultKind.HOST_STALL: (0.03, 0.15),
    FaultKind.DATA_STALL: (0.03, 0.15),
    FaultKind.LATE_LINK: (0.02, 0.06),
}
"""Short and long; of a link, a message."""


@dataclass(frozen=True)
class Case:
    name: str
    layout: str
    scenario: Scenario

    @property
    def clean(self) -> bool:
        return not self.scenario.faults

    @property
    def must_be_found(self) -> bool:
        return all(fault.effect_ratio is None or fault.effect_ratio >= FLOOR_RATIO for fault in self.scenario.faults)


def slow(rank: int, ratio: float = 1.4) -> Fault:
    return Fault(kind=FaultKind.SLOW_COMPUTE, ranks=(rank,), from_step=FROM_STEP, effect_ratio=ratio)


def stall(kind: FaultKind, rank: int, seconds: float) -> Fault:
    return Fault(kind=kind, ranks=(rank,), from_step=FROM_STEP, seconds=seconds)


def hang(rank: int) -> Fault:
    return Fault(kind=FaultKind.HANG, ranks=(rank,), from_step=HANG_STEP)


def case(layout: str, *faults: Fault) -> Case:
    return Case(f"{layout}: {' + '.join(map(_described, faults))}", layout, Scenario(faults=faults))


def expected(layout: str, kind: FaultKind) -> list[tuple[str, frozenset[str]]]:
    """Kinds of findings, each with its causes, that say rightly what the fault is."""
    overlapped = kind is OVERLAPPED and "VPP" in layout
    return [EXPECTED[kind], *([EXPECTED[FaultKind.HOST_STALL]] if overlapped else [])]


def _described(fault: Fault) -> str:
    size = f" x{fault.effect_ratio}" if fault.effect_ratio else f" {fault.seconds} s" if fault.seconds else ""
    return f"{fault.kind}{size} on {fault.ranks[0]}"


def _of_layout(number: int, layout: str) -> list[Case]:
    """Every fault, on changing ranks. Only ranks that load data can have it stall."""
    faults = [slow((number + turn) % 4, ratio) for turn, ratio in enumerate(SLOW_RATIOS)]
    for kind, sizes in STALL_SECONDS.items():
        first = kind is FaultKind.DATA_STALL
        faults += [stall(kind, 0 if first else (number + turn) % 4, size) for turn, size in enumerate(sizes, start=1)]
    return [case(layout, fault) for fault in (*faults, hang((number + 3) % 4))]


def _of_combined(number: int, layout: str) -> list[Case]:
    """The smallest fault of each kind that must be found, on changing ranks."""
    faults = [slow(number % 4, 1.2), stall(FaultKind.HOST_STALL, (number + 1) % 4, 0.15)]
    faults += [stall(FaultKind.LATE_LINK, (number + 2) % 4, 0.06), hang((number + 3) % 4)]
    return [case(layout, fault) for fault in faults]


DOUBLE = [
    case("DP4", slow(1), slow(2)),
    case("DP4", slow(3), stall(FaultKind.DATA_STALL, 0, 0.15)),
    case("PP2 x DP2", slow(0), slow(3)),
    case("PP2 x DP2", slow(2), stall(FaultKind.HOST_STALL, 1, 0.15)),
    case("TP2 x DP2", slow(1), stall(FaultKind.HOST_STALL, 2, 0.15)),
]
FAULTY = [
    *(case for number, layout in enumerate(LAYOUTS) for case in _of_layout(number, layout)),
    *(case for number, layout in enumerate(COMBINED) for case in _of_combined(number, layout)),
    *DOUBLE,
]
ALL_LAYOUTS = LAYOUTS | COMBINED
CLEAN = [
    Case(f"clean {number}: {layout}", layout, Scenario())
    for number, layout in enumerate((list(ALL_LAYOUTS) * 2)[:20], start=1)
]


def drawn(cases: Sequence[Case], share: float, seed: int) -> list[Case]:
    """So many of the cases, in their order; the same for the same seed. Stratified: each is drawn at random of those
    of whose layout, and then of whose kinds of fault, the least share has been drawn, so that a small part has all of
    both."""
    left, chosen = list(cases), list[Case]()
    random.Random(seed).shuffle(left)
    layouts, kinds = Counter(case.layout for case in cases), Counter(map(kinds_of, cases))
    drawn_layouts, drawn_kinds = Counter[str](), Counter[tuple[FaultKind, ...]]()

    def shares_drawn(case: Case) -> tuple[float, float]:
        of = kinds_of(case)
        return drawn_layouts[case.layout] / layouts[case.layout], drawn_kinds[of] / kinds[of]

    for _ in range(max(1, round(share * len(cases)))):
        case = min(left, key=shares_drawn)
        left.remove(case)
        chosen.append(case)
        drawn_layouts[case.layout] += 1
        drawn_kinds[kinds_of(case)] += 1
    return sorted(chosen, key=cases.index)


def kinds_of(case: Case) -> tuple[FaultKind, ...]:
    return tuple(fault.kind for fault in case.scenario.faults)
