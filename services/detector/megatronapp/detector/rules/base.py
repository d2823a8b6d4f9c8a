"""What rules look at and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.detector.nccl_watch import NcclView
from megatronapp.detector.profiles import DeviceProfile
from megatronapp.detector.signals.accounting import Accounts
from megatronapp.detector.signals.compute import ComputeEffect
from megatronapp.detector.signals.exposure import Exposure
from megatronapp.detector.signals.links import Collectives, Messages
from megatronapp.detector.signals.nodes import SlowNode
from megatronapp.detector.signals.saves import Saves
from megatronapp.detector.signals.transfers import Transfers
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2

SPEED = ("compute_effect", "own_history")
"""Signals of a device's speed: beside its peers, and beside its past."""
HOST = ("launching", "host_gap", "data_wait", "garbage_collection", "sync_delay", "send_delay")
OWN_REASONS = (*SPEED, "optimizer", *HOST)
"""Signals that say why a rank itself is late."""
PAGE_STEPS = 3
"""Steps that were judged and slow: two may be outliers."""
PATIENT_PAGE_STEPS = 6
"""What a host does: a burst of other load lasts for some steps."""
CERTAIN_SIGMAS = 3.0
"""An effect is larger than another when it is by so many standard deviations of its estimate."""
DISPUTED = 0.85
"""Share of its confidence that a verdict keeps when a second signal that could confirm it does not: below what moves a
job unless its spec says otherwise (`minConfidence`, 0.9), however certain the test is. Pages do not ask for it."""


@dataclass(frozen=True, slots=True)
class View:
    """One step with everything that was measured in it, and the monitors after they have seen it."""

    profile: DeviceProfile
    """Of the job's devices."""
    table: StepTable
    effect: ComputeEffect
    accounts: Accounts
    messages: Messages
    collectives: Collectives
    monitors: Mapping[str, Monitor]
    """By signal. Items are global ranks; of `transfer` slots of `transfers`, of `stage_imbalance` stages, of NCCL's
    transfers places in `nccl.keys`."""
    transfers: Transfers
    exposure: Exposure
    saves: Saves
    step_seconds: float
    """Duration of the job's usual step."""
    young_until: float
    """The last of the first WARM_UP steps that were judged, inf before: until then ranks have no history."""
    nodes: Mapping[str, SlowNode]
    """Those that are slow as a whole."""
    telemetry: Mapping[int, trace_pb2.GpuTelemetry] = field(default_factory=dict)
    nccl: NcclView | None = None
    """None: it tells nothing."""

    def rank_index(self, rank: int) -> int | None:
        """Place of a global rank in the table's arrays."""
        place = int(np.searchsorted(self.table.ranks.rank, rank))
        return place if place < len(self.table.ranks) and self.table.ranks.rank[place] == rank else None

    def alarmed(self, signal: str) -> list[int]:
        """Items of a signal that are slow now; none of a signal that this kind of device does not have."""
        monitor = self.monitors.get(signal)
        return [int(item) for item in np.flatnonzero(monitor.alarmed)] if monitor is not None else []


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A verdict of one step; what becomes of it over steps is findings.py's matter."""

    kind: Kind
    cause: Cause
    ranks: tuple[int, ...]
    since_step: int | None
    effect_ratio: float
    evidence: tuple[Evidence, ...]
    summary: str
    advice: str
    confidence: float
    uncertainty: float = 0.0
    """Standard deviation of log(effect_ratio)."""
    smallest: float = 0.0
    """log(effect_ratio) below which it never pages."""
    lost_seconds: float = 0.0
    """Time that the ranks themselves lose in a step."""
    slow_steps: int = 0
    """Steps that were judged and showed it. One that was not judged, of whatever reason, counts for nothing."""
    pages: bool = True
    page_steps: int = PAGE_STEPS
    """So many slow steps before it pages."""
    page_seconds: float = 0.0
    """And so many seconds."""
    fading: bool = False
    """The newest steps hardly show it: no time to wake somebody."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Compute time of each rank ÷ expected that costs as much, for the what-if; empty: the cost is cost_ratio."""
    cost_ratio: float = 1.0
    involved: tuple[int, ...] = ()
    """Further ranks whose own slowness would explain it."""
    outweighs: Kind | None = None
    """What the same ranks are suspected of as well, which explains less."""


class Rule(Protocol):
    def __call__(self, view: View) -> Iterable[Suspicion]: ...


def evidence(view: View, signal: str, item: int, text: str, *, logarithmic: bool = True) -> Evidence:
    """The signal's recent series of one item as evidence, logs turned into ratios."""
    series = view.monitors[signal].series(item)
    values = np.exp(series.values) if logarithmic else np.asarray(series.values)
    expected = float(np.exp(series.expected)) if logarithmic else series.expected
    return Evidence(
        signal=signal,
        text=text,
        unit="ratio",
        steps=series.steps,
        values=tuple(float(v) for v in values),
        expected=(expected,) * len(series.steps),
    )


def confidence(monitor: Monitor, item: int, *, disputed: bool = False) -> float:
    """From the evidence of the test: at least 0.95 once it has alarmed, 0 while it speaks against. That no other signal
    can speak of the item is no reason to doubt, only one that can and does not agree."""
    evidence = max(0.0, float(monitor.log_evidence[item]))
    certainty = 1.0 - float(np.exp(-evidence / monitor.log_threshold * 3.0))
    return round(certainty * (DISPUTED if disputed else 1.0), 3)


def patience(view: View, since_step: int, *, wall_time: bool = False, small: bool = False) -> int:
    """Steps before a verdict on a rank's speed pages. wall_time: it was measured by nothing else; small: it may be one
    of the passing ones."""
    of = view.profile.patience
    steps = of.passing_steps if small else of.wall_steps if wall_time else of.steps
    return max(steps, of.early_steps) if since_step <= view.young_until else steps


def percent(ratio: float) -> str:
    """1.25 as "25 %", 63 as "63×": as the page writes it, so that one effect is one number everywhere."""
    more = (ratio - 1) * 100
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{more:.0f} %" if more >= 9.95 else f"{more:.1f} %"
