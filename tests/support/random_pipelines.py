"""Random pipelines: layouts, orders, caps, times and links, of few and short operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Engine, Run, Schedule, dynamic, run, strict


@dataclass(frozen=True)
class Case:
    layout: Layout
    hints: list[Order]
    caps: list[int]
    durations: Whole
    late: Whole
    links: Links

    def run(self, schedule: Schedule | None = None, engine: Engine | None = None) -> Run:
        wiring = wire(self.layout, self.links)
        late = self.late * wiring.crosses(self.layout)
        return run(self.layout, schedule or self.dynamic(), self.durations, wiring, late=late, engine=engine)

    def dynamic(self, *, reserve: bool = True) -> Schedule:
        return dynamic("random", self.layout, self.hints, self.caps, reserve=reserve)

    def replayed(self) -> Schedule:
        """What the dynamic run did, to be run as it is."""
        return strict("replay", self.layout, self.run().orders())


def random_case(seed: int) -> Case:
    """Any order of lanes, caps from the least to more than everything; tight ones often."""
    random = np.random.default_rng(seed)
    placement = Placement.V if random.random() < 0.3 else Placement.LOOP
    layout = Layout(
        stages=int(random.integers(1, 6)),
        chunks=2 if placement is Placement.V else int(random.integers(1, 5)),
        microbatches=int(random.integers(1, 9)),
        split=bool(random.random() < 0.5),
        placement=placement,
    )
    most = layout.chunks * layout.microbatches
    caps = [
        layout.chunks + int(random.integers(0, 3) if random.random() < 0.7 else random.integers(0, most + 1))
        for _ in range(layout.stages)
    ]
    shape = (layout.stages, layout.operations)
    links = Links(
        latency_ns=int(random.integers(0, 4)),
        transfer_ns=int(random.integers(0, 3)),
        shared_stages=int(random.integers(0, 3)),
        blocking=bool(random.random() < 0.3),
    )
    return Case(
        layout,
        [random_order(layout, random) for _ in range(layout.stages)],
        caps,
        random.integers(1, 7, shape),
        random.integers(0, 9, shape) * (random.random(shape) < 0.2),
        links,
    )


def random_order(layout: Layout, random: np.random.Generator) -> list[Operation]:
    """Lanes mixed at random, each in its own order."""
    lanes = np.repeat(np.arange(layout.lanes), layout.microbatches)
    random.shuffle(lanes)
    heads = [0] * layout.lanes
    order = []
    for lane in lanes:
        order.append(layout.operation(int(lane) * layout.microbatches + heads[lane]))
        heads[lane] += 1
    return order
