"""Faults: when, whom, how much and what kind; and which verdict on it is right."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from bench.scale.layout import Layout
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.steps import Floats


class What(StrEnum):
    """What is slow. Sizes are ratios of the passes' time (compute, memory: the optimizer's), of a transfer's (link,
    switch), or shares of a step on top of it (host, data, garbage: 1.05 = 5 % of the step)."""

    COMPUTE = "compute"
    MEMORY = "memory"
    HOST = "host"
    DATA = "data"
    GARBAGE = "garbage"
    LINK = "link"
    """Messages and collectives of the ranks."""
    SWITCH = "switch"
    """The same of most ranks, which share it."""


RIGHT: dict[What, frozenset[tuple[Kind, Cause]]] = {
    What.COMPUTE: frozenset({(Kind.SLOW_GPU, cause) for cause in (Cause.COMPUTE, Cause.THERMAL, Cause.INTERFERENCE)}),
    What.MEMORY: frozenset({(Kind.SLOW_GPU, Cause.MEMORY_BOUND)}),
    What.HOST: frozenset({(Kind.SLOW_HOST, Cause.HOST_CPU)}),
    What.DATA: frozenset({(Kind.SLOW_HOST, Cause.DATA_LOADING)}),
    What.GARBAGE: frozenset({(Kind.SLOW_HOST, Cause.GARBAGE_COLLECTION)}),
    What.LINK: frozenset({(Kind.SLOW_LINK, cause) for cause in (Cause.NIC, Cause.NVLINK)}),
    What.SWITCH: frozenset({(Kind.FABRIC_SLOW, Cause.NIC), (Kind.SLOW_LINK, Cause.NIC)}),
}
"""Kinds and causes of a right verdict. `unknown` is never wrong, where the ranks are right."""


@dataclass(frozen=True)
class Fault:
    what: What
    ranks: tuple[int, ...]
    ratio: float
    from_step: int
    to_step: int = 10**9
    """Inclusive."""
    every: int = 1
    """In each so-many-th step alone."""
    ramp_steps: int = 1
    """It grows to its full size within so many steps."""
    silent: bool = False
    """Its ranks' summaries are lost from then on."""

    def size(self, step: int) -> float:
        """log of the ratio in a step; 0: not active."""
        if not self.from_step <= step <= self.to_step or (step - self.from_step) % self.every:
            return 0.0
        grown = min(1.0, (step - self.from_step + 1) / self.ramp_steps)
        return grown * math.log(self.ratio)

    @property
    def places(self) -> frozenset[int]:
        return frozenset(self.ranks)

    def explains(self, kind: Kind, cause: Cause) -> bool:
        return Kind.UNKNOWN in (kind,) or cause is Cause.UNKNOWN or (kind, cause) in RIGHT[self.what]


def sizes(faults: tuple[Fault, ...], what: What, step: int, world: int) -> Floats | None:
    """log of the ratio of each rank; None: nothing of that kind now."""
    found: Floats | None = None
    for fault in faults:
        if fault.what is what and (size := fault.size(step)):
            found = np.zeros(world) if found is None else found
            found[list(fault.ranks)] += size
    return found


def on_node(fault: Fault, layout: Layout, node: int) -> Fault:
    """The same on all ranks of a node."""
    return replace(fault, ranks=layout.node_ranks(node))
