"""One replica's step: a schedule on a layout, with given times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.choosing import FREE, Choosing
from megatronapp.core.pipeline.lanes import PEAK, WHOLE
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import places_of
from megatronapp.core.pipeline.simulator import events
from megatronapp.core.pipeline.simulator.links import Wiring, first_arrivals

NOT_RUN = -1
Engine = Callable[..., None]
"""Takes the arguments of events.simulate, as arrays."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What stages run: orders as they are (`strict`) or as hints under a cap of activations (in chunks × microbatches)
    that is one number for all stages, or one for each.

    `by_need`: of messages that wait for a link goes first the one that stands first in the receiving stage's order, as
    MegaDPP sends them, and not the one that set out first.
    """

    name: str
    places: Whole
    caps: tuple[int, ...]
    strict: bool
    reserve: bool = True
    pending: int = WHOLE
    """Thousandths of an activation that a pending W holds."""
    by_need: bool = False


def strict(name: str, layout: Layout, orders: Sequence[Sequence[Operation]], *, by_need: bool = False) -> Schedule:
    """Orders to be run as they are. Raises UsageError when they do not fit the layout."""
    places = np.array([places_of(layout, order) for order in orders], np.int64)
    return Schedule(name, places, (layout.chunks * layout.microbatches,) * layout.stages, True, by_need=by_need)


def dynamic(
    name: str, layout: Layout, hints: Sequence[Sequence[Operation]], caps: Sequence[int], *,
    reserve: bool = True, pending: int = WHOLE,
) -> Schedule:  # fmt: skip
    """Hints under caps. Raises UsageError when they do not fit the layout."""
    places = np.array([places_of(layout, order) for order in hints], np.int64)
    return Schedule(name, places, tuple(caps), False, reserve, pending, by_need=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What happened. begins and durations: (stages, operations) in ns; NOT_RUN where an operation never began."""

    layout: Layout
    begins: Whole
    durations: Whole
    peaks: tuple[float, ...]
    """Most activations in flight, by stage, in chunks × microbatches."""
    end_ns: int
    """When the last operation ended."""

    @property
    def complete(self) -> bool:
        """False: stages waited for each other for ever."""
        return bool((self.begins != NOT_RUN).all())

    @property
    def ends(self) -> Whole:
        return self.begins + self.durations

    def orders(self) -> list[list[Operation]]:
        """What each stage ran, in its order."""
        return [
            [self.layout.operation(int(number)) for number in np.argsort(begins, kind="stable") if begins[number] >= 0]
            for begins in self.begins
        ]


def run(
    layout: Layout, schedule: Schedule, durations: Whole, wiring: Wiring, *,
    late: Whole | None = None, choosing: Choosing = FREE, engine: Engine | None = None,
) -> Run:  # fmt: skip
    """Simulate. durations: (stages, operations) in ns, at least 1; late: what is added to
    the delay of the message that each operation needs, also of those that stay on their stage. A strict order has
    nothing to choose, so that of `choosing` only the host's time counts.

    engine: `in_python`, or a compiled one that takes the same arrays.
    """
    delay = wiring.delay if late is None else wiring.delay + late
    choosing = Choosing(host_ns=choosing.host_ns) if schedule.strict else choosing
    by_lane = np.zeros((layout.stages, layout.lanes), np.int64)
    begins = np.full(durations.shape, NOT_RUN, np.int64)
    held = np.zeros((layout.stages, 2), np.int64)
    free = np.zeros(layout.stages, np.int64)
    (engine or in_python)(
        _rules(layout, schedule, wiring, choosing.launch_ns), np.array(schedule.caps, np.int64), schedule.places,
        durations, by_lane + choosing.lead_ns, by_lane + choosing.host_ns,
        wiring.next_stage, wiring.next_lane, wiring.link, wiring.occupancy, delay,
        np.zeros(max(1, wiring.links), np.int64), first_arrivals(layout), begins, by_lane.copy(), held, free,
    )  # fmt: skip
    return Run(layout, begins, durations, tuple((held[:, PEAK] / WHOLE).tolist()), int(free.max()))


def _rules(layout: Layout, schedule: Schedule, wiring: Wiring, launch_ns: int) -> events.Rules:
    return events.Rules(
        stages=layout.stages,
        chunks=layout.chunks,
        microbatches=layout.microbatches,
        operations=layout.operations,
        actors=2 * layout.stages + max(1, wiring.links),
        strict=schedule.strict,
        reserve=schedule.reserve,
        blocking=wiring.blocking,
        by_need=schedule.by_need and not wiring.shared,
        pending=schedule.pending,
        launch=launch_ns,
    )


def in_python(rules: events.Rules, *arrays: Whole) -> None:
    """events.simulate on lists, which Python indexes faster than arrays."""
    lists: list[Any] = [each.tolist() for each in arrays]
    events.simulate(rules, *lists)
    for array, filled in zip(arrays[-4:], lists[-4:], strict=True):
        array[:] = filled
