"""What bench.dpp's cases draw on real devices, and what the simulator says of the same draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.arrays import Floats, PassTimes, Whole
from megatronapp.core.pipeline.choosing import CHOOSING_NS, FREE, LAUNCH_NS, Choosing
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.bound import step_bound_ns
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Run, dynamic, run, strict
from megatronapp.core.pipeline.simulator.times import durations_of, lognormal

STOCK, DYNAMIC, PLANNED, REPLAY = "stock", "dynamic", "planned", "replay"
"""planned: the hint's order as it is; replay: the order that choices make of it on a quiet machine."""
HINT = "interleaved-zb"
QUIET_MUST = 0.98
LATE_FORWARDS = 3


class Case(NamedTuple):
    """stretch: what an operation takes at a factor of 1, in what the model's own part takes."""

    name: str
    stretch: float = 1.0
    jitter_cv: float = 0.0
    length_cv: float = 0.0
    late_ratio: float = 0.0
    goal: float = 1.03

    def must(self, gain_simulated: float) -> float:
        quiet = not (self.jitter_cv or self.length_cv or self.late_ratio)
        return QUIET_MUST if quiet else 1 + (gain_simulated - 1) / 2


CASES = (
    Case("quiet"),
    Case("jitter cv 0.2", stretch=1.5, jitter_cv=0.2),
    Case("length cv 0.5", stretch=3.0, length_cv=0.5, goal=1.05),
    Case(f"5 % of messages {LATE_FORWARDS} F late", late_ratio=0.05, goal=1.10),
)


def orders_of(mode: str, layout: Layout) -> list[list[Operation]]:
    """Hints of the modes that choose, and what is planned."""
    return orders.all_stages(HINT if mode in (DYNAMIC, PLANNED) else mode, layout)


@dataclass
class Draws:
    """Of all stages, alike on all ranks. Until `base` is known, which is in ns by (F B W, stage, chunk), nothing is
    added to operations."""

    layout: Layout
    base: PassTimes = field(init=False)

    def __post_init__(self) -> None:
        self.base = np.zeros((len(Kind), self.layout.stages, self.layout.chunks))

    @property
    def known(self) -> bool:
        return bool(self.base.any())

    def pads(self, case: Case, seed: int) -> Floats:
        """What operations take longer, by (stage, F B W, chunk, microbatch), in ns."""
        base = self.base.transpose(1, 0, 2)[..., None]
        return np.asarray(base * np.maximum(0.0, case.stretch * _factors(case, seed, self.layout) - 1))

    def late(self, case: Case, seed: int) -> Whole:
        """How much later what F and B need comes, by (stage, F B, chunk, microbatch), in ns."""
        forward_ns = self.base[Kind.FORWARD].sum(axis=1).mean()
        return np.asarray(_is_late(case, seed, self.layout) * round(LATE_FORWARDS * forward_ns))


@lru_cache(maxsize=64)
def _factors(case: Case, seed: int, layout: Layout) -> Floats:
    generator = np.random.default_rng([seed, 0])
    factors = np.ones((layout.stages, len(Kind), layout.chunks, layout.microbatches))
    if case.jitter_cv:
        factors *= lognormal(generator, case.jitter_cv, factors.shape)
    if case.length_cv:
        factors *= lognormal(generator, case.length_cv, (layout.microbatches,))
    return factors


@lru_cache(maxsize=64)
def _is_late(case: Case, seed: int, layout: Layout) -> Whole:
    shape = (layout.stages, 2, layout.chunks, layout.microbatches)
    return (np.random.default_rng([seed, 1]).random(shape) < case.late_ratio).astype(np.int64)


@dataclass
class Predicted:
    """By the simulator, from what each rank's passes took (`ranks`, as CaseRecord.plain of _dpp_devices)."""

    layout: Layout
    draws: Draws
    ranks: list[dict[str, Any]]

    @staticmethod
    def times(layout: Layout, ranks: list[dict[str, Any]], mode: str) -> PassTimes:
        """Of the model's own part in ns, by (F B W, stage, chunk); W is 0 where B holds it."""
        times = np.zeros((len(Kind), layout.stages, layout.chunks))
        for stage, rank in enumerate(ranks):
            for (kind, chunk), nanoseconds in rank["passes"][mode].items():
                times[kind, stage, chunk] = nanoseconds
        return times

    def mean_ms(self, mode: str) -> list[float]:
        """Of F, B and W of a chunk."""
        return [float(each) / 1e6 for each in self.times(self.layout, self.ranks, mode).mean(axis=(1, 2))]

    def choosing(self, layout: Layout) -> Choosing:
        """As the trainer chooses where operations are launched on a device: by what that took each rank's host."""
        host_ns = np.zeros((layout.stages, layout.lanes), np.int64)
        for stage, rank in enumerate(self.ranks):
            for (kind, chunk), milliseconds in rank.get("launch_ms", {}).items():
                lane_kind = min(kind, layout.kinds[-1])  # without the split a backward pass launches W, too
                host_ns[stage, layout.lane(lane_kind, chunk)] += round(milliseconds * 1e6)
        if not host_ns.any():
            return FREE
        lead_ns = np.broadcast_to(host_ns.max(axis=1, keepdims=True) + CHOOSING_NS, host_ns.shape)
        return Choosing(lead_ns, LAUNCH_NS, host_ns)

    def run(self, case: Case, mode: str, seed: int, choosing: Choosing | None = None) -> Run:
        """`choosing`: as the trainer does, unless told otherwise."""
        layout, durations, late = self._step(case, mode, seed)
        choosing = self.choosing(layout) if choosing is None else choosing
        if mode == STOCK:
            schedule = strict(mode, layout, orders.all_stages("interleaved", layout))
        elif mode == PLANNED:
            schedule = strict(mode, layout, orders_of(mode, layout))
        elif mode == REPLAY:
            schedule = strict(mode, layout, self.run(Case("quiet"), DYNAMIC, 0).orders())
        else:
            cap = caps.stock_cap(self.layout)
            schedule = dynamic(mode, layout, orders_of(mode, layout), [cap] * layout.stages)
        wiring = wire(layout, Links())
        return run(layout, schedule, durations, wiring, late=late * wiring.crosses(layout), choosing=choosing)

    def bound_ns(self, case: Case, mode: str, seed: int) -> float:
        layout, durations, _ = self._step(case, mode, seed)
        return float(step_bound_ns(layout, durations, wire(layout, Links()), barrier=True))

    def _step(self, case: Case, mode: str, seed: int) -> tuple[Layout, Whole, Whole]:
        layout = replace(self.layout, split=mode != STOCK)
        own = self.times(layout, self.ranks, mode if mode in self.ranks[0]["passes"] else DYNAMIC)
        all_ns = own.transpose(1, 0, 2)[..., None] + self.draws.pads(case, seed)
        late = np.zeros((layout.stages, len(layout.kinds), layout.chunks, layout.microbatches), np.int64)
        late[:, :2] = self.draws.late(case, seed)
        return layout, durations_of(layout, all_ns), late.reshape(layout.stages, layout.operations)
