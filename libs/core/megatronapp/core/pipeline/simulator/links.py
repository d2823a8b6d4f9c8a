"""How messages between stages travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import NEVER

MAX_FACTOR = 1000
MAX_MESSAGE_NS = 1 << 44
"""Almost five hours: a step's messages one after the other can still be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """One link for each pair of neighbours and direction, or one for all that leaves `shared_stages` neighbouring
    stages (the NIC of a node). A message occupies its link for `transfer_ns`, while others wait, and arrives
    `latency_ns` later.

    `blocking`: a message takes the receiving stage's time. `slow` gives the times of single links, by the sending and
    the receiving stage, as factors. Raises UsageError.
    """

    latency_ns: int = 0
    transfer_ns: int = 0
    shared_stages: int = 0
    blocking: bool = False
    slow: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        if min(self.latency_ns, self.transfer_ns, self.shared_stages) < 0:
            raise UsageError("latency, transfer time and the number of stages that share a link can't be negative")
        factors = [factor for _, _, factor in self.slow]
        if not all(0 < factor < MAX_FACTOR for factor in factors):
            raise UsageError(f"a link can be up to {MAX_FACTOR} times as slow, and its factor is above 0")
        if max(self.latency_ns, self.transfer_ns) * max([1.0, *factors]) > MAX_MESSAGE_NS:
            raise UsageError("a message that takes hours; times are in milliseconds")


@dataclass(frozen=True, slots=True)
class Wiring:
    """A layout's messages as the simulation takes them; arrays as in events.simulate."""

    next_stage: Whole
    next_lane: Whole
    link: Whole
    links: int
    occupancy: Whole
    delay: Whole
    blocking: bool
    shared: bool
    """Stages share links: none of them knows what the others' messages are needed for."""

    def crosses(self, layout: Layout) -> Whole:
        """By stage and operation: 1 where its message comes from another stage, else 0."""
        return np.repeat((self.link >= 0).astype(np.int64), layout.microbatches, axis=1)


def wire(layout: Layout, links: Links) -> Wiring:
    """Raises UsageError when a slow link is none of the layout's."""
    shape = (layout.stages, layout.lanes)
    next_stage, next_lane, link = (np.full(shape, -1, np.int64) for _ in range(3))
    occupancy, delay = (np.zeros((*shape, layout.microbatches), np.int64) for _ in range(2))
    numbers: dict[tuple[int, int], int] = {}
    slow = {(source, target): factor for source, target, factor in links.slow}
    for stage in range(layout.stages):
        for kind in layout.kinds:
            for chunk in range(layout.chunks):
                following = layout.following(stage, kind, chunk)
                if following is None:
                    continue
                target, there = following[0], layout.lane(following[1], following[2])
                next_stage[stage, layout.lane(kind, chunk)] = target
                next_lane[stage, layout.lane(kind, chunk)] = there
                if target != stage:
                    factor = slow.get((stage, target), 1.0)
                    link[target, there] = numbers.setdefault(_link(stage, target, links), len(numbers))
                    occupancy[target, there] = round(links.transfer_ns * factor)
                    delay[target, there] = round(links.latency_ns * factor)
    _check_slow(layout, links)
    flat = (layout.stages, layout.operations)
    return Wiring(
        next_stage, next_lane, link, len(numbers), occupancy.reshape(flat), delay.reshape(flat), links.blocking,
        links.shared_stages > 1,
    )  # fmt: skip


def _link(source: int, target: int, links: Links) -> tuple[int, int]:
    """Which link a message takes: its pair's, or what its sender shares on the way out of a group."""
    if links.shared_stages:
        return source // links.shared_stages, -1
    return source, target


def _check_slow(layout: Layout, links: Links) -> None:
    for source, target, factor in links.slow:
        if not (0 <= source < layout.stages and 0 <= target < layout.stages and source != target):
            raise UsageError(f"no link from stage {source} to stage {target} in a pipeline of {layout.stages}")
        if not 0 < factor < float("inf"):
            raise UsageError(f"a link can't be {factor} times as slow")


def first_arrivals(layout: Layout) -> Whole:
    """What is there at the begin: the first part's inputs; NEVER otherwise."""
    arrivals = np.full((layout.stages, layout.lanes, layout.microbatches), NEVER, np.int64)
    stage, chunk = layout.place(0)
    arrivals[stage, layout.lane(Kind.FORWARD, chunk)] = 0
    return arrivals.reshape(layout.stages, layout.operations)
