"""The fault matrix: every kind of fault in every layout, two faults at once, and clean runs."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.scenario import Fault, FaultKind, Scenario

FROM_STEP = 36
"""35 clean steps before every fault."""
STALL_SECONDS = 0.15
LATE_SECONDS = 0.06

LAYOUTS: dict[str, tuple[str, ...]] = {
    "DP4": (),
    "PP2 x DP2": ("--pipeline-model-parallel-size=2",),
    "TP2 x DP2": ("--tensor-model-parallel-size=2",),
    "PP4 (DP1)": ("--pipeline-model-parallel-size=4",),
    "PP2 x TP2 (DP1)": ("--pipeline-model-parallel-size=2", "--tensor-model-parallel-size=2"),
    "PP2 x VPP2 x DP2": ("--pipeline-model-parallel-size=2", "--num-virtual-stages-per-pipeline-rank=2"),
}
"""Four ranks each; steps of about 0.1 s."""

EXPECTED: dict[FaultKind, tuple[str, frozenset[str]]] = {
    FaultKind.SLOW_COMPUTE: ("slow_gpu", frozenset({"compute"})),
    FaultKind.HOST_STALL: ("slow_host", frozenset({"host_cpu"})),
    FaultKind.DATA_STALL: ("slow_host", frozenset({"data_loading"})),
    FaultKind.LATE_LINK: ("slow_link", frozenset({"nic", "nvlink", "unknown"})),
    FaultKind.HANG: ("hang", frozenset({"compute", "host_cpu"})),
}
"""What the platform must say of each kind of fault."""


@dataclass(frozen=True)
class Case:
    name: str
    layout: str
    scenario: Scenario

    @property
    def clean(self) -> bool:
        return not self.scenario.faults


def _fault(kind: FaultKind, rank: int) -> Fault:
    seconds = {FaultKind.HOST_STALL: STALL_SECONDS, FaultKind.DATA_STALL: STALL_SECONDS}
    return Fault(
        kind=kind,
        ranks=(rank,),
        from_step=FROM_STEP,
        effect_ratio=1.4 if kind is FaultKind.SLOW_COMPUTE else None,
        seconds=LATE_SECONDS if kind is FaultKind.LATE_LINK else seconds.get(kind),
    )


def _case(layout: str, *faults: tuple[FaultKind, int]) -> Case:
    what = " + ".join(f"{kind} on {rank}" for kind, rank in faults)
    return Case(f"{layout}: {what}", layout, Scenario(faults=tuple(_fault(*fault) for fault in faults)))


def _single() -> list[Case]:
    """Every kind in every layout, on changing ranks. Only ranks that load data can have it stall."""
    cases = []
    for number, layout in enumerate(LAYOUTS):
        for kind in FaultKind:
            first = kind is FaultKind.DATA_STALL
            cases.append(_case(layout, (kind, 0 if first else (number + len(cases)) % 4)))
    return cases


DOUBLE = [
    _case("DP4", (FaultKind.SLOW_COMPUTE, 1), (FaultKind.SLOW_COMPUTE, 2)),
    _case("DP4", (FaultKind.SLOW_COMPUTE, 3), (FaultKind.DATA_STALL, 0)),
    _case("PP2 x DP2", (FaultKind.SLOW_COMPUTE, 0), (FaultKind.SLOW_COMPUTE, 3)),
    _case("PP2 x DP2", (FaultKind.SLOW_COMPUTE, 2), (FaultKind.HOST_STALL, 1)),
    _case("TP2 x DP2", (FaultKind.SLOW_COMPUTE, 1), (FaultKind.HOST_STALL, 2)),
]
FAULTY = [*_single(), *DOUBLE]
CLEAN = [
    Case(f"clean {number}: {layout}", layout, Scenario())
    for number, layout in enumerate(list(LAYOUTS) * 3 + list(LAYOUTS)[:2], start=1)
]
