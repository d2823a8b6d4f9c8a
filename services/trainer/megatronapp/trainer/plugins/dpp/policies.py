"""From the flags to each step's policy: which hint, which cap, or which recorded order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.pipeline import caps, orders, running_ahead
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.policy import StagePolicy, places_of
from megatronapp.core.pipeline.schedule_csv import read_csv
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import run, strict
from megatronapp.core.pipeline.simulator.steps import stuck

AUTO, REPLAY = "auto", "replay"
INTERLEAVED, INTERLEAVED_ZB = "interleaved", "interleaved-zb"
ZERO_BUBBLE = ("zb-h1", "zb-h2")
PLACES_FOR_W = (INTERLEAVED_ZB, *ZERO_BUBBLE)
"""The layout must split it from B."""
POLICIES = (AUTO, INTERLEAVED, INTERLEAVED_ZB, "depth-first", "breadth-first", *ZERO_BUBBLE, REPLAY)
"""AUTO and REPLAY; the others are hints, by the names that `simulate` and `plan` have for them."""
BACKWARD_RATIO = 2.0
"""B in F, until something was measured."""


@dataclass(frozen=True)
class Policies:
    """The policy of every step. Raises UsageError when it is made for flags that do not fit the layout.

    name: one of POLICIES. cap: activations in flight at most; None: the largest peak of stock's order, or of the
    zero-bubble one. order: a schedule's CSV, for REPLAY: its order says whether W is split, whatever `layout` does.
    """

    layout: Layout
    name: str
    cap: int | None = None
    order: Path | None = None
    _orders: list[Order] = field(init=False)
    _cap: int = field(init=False)
    _places: dict[int, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == REPLAY:
            layout, orders_ = _read(self.layout, self.order)
        else:
            layout, orders_ = self.layout, orders.all_stages(_hint(self.name, self.layout), self.layout)
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "_orders", orders_)
        usual = max(map(caps.peak, orders_)) if self.name in ZERO_BUBBLE else caps.stock_cap(self.layout)
        object.__setattr__(self, "_cap", usual if self.cap is None else checked_cap(self.layout, self.cap))

    def __call__(self, layout: Layout, stage: int) -> StagePolicy:
        """As DynamicSchedule asks for it."""
        return StagePolicy(layout, stage, self._orders[stage], cap=self._cap, strict=self.name == REPLAY)

    def places(self, stage: int) -> list[int]:
        """Place of each of a stage's operations in its order, by number."""
        if stage not in self._places:
            self._places[stage] = places_of(self.layout, self._orders[stage])
        return self._places[stage]

    @cached_property
    def receives_ahead(self) -> int:
        """Messages of a lane: as many as a recorded order asks for."""
        if self.name != REPLAY:
            return running_ahead.RECEIVES_AHEAD
        return running_ahead.receives_ahead(self.layout, self._orders)

    @cached_property
    def most_launched(self) -> int:
        """Operations of an order that is run as it is: as many as a recorded one asks for."""
        if self.name != REPLAY:
            return running_ahead.MOST_LAUNCHED
        return running_ahead.most_launched(self.layout, self._orders, self.receives_ahead)

    @property
    def has_plan(self) -> bool:
        """Whether the hint as it is may be run: it puts W off, which stock does not, and fits into the cap."""
        return self.layout.split and max(map(caps.peak, self._orders)) <= self._cap

    def planned(self, layout: Layout, stage: int) -> StagePolicy:
        return StagePolicy(layout, stage, self._orders[stage], cap=self._cap, strict=True)


def _hint(name: str, layout: Layout) -> str:
    if name != AUTO:
        return name
    return INTERLEAVED_ZB if layout.split else INTERLEAVED


def checked_cap(layout: Layout, cap: int) -> int:
    """Raises UsageError for one that can stop for ever, or keeps the pipeline from full pace, with the least one."""
    caps.checked_cap(layout, cap)
    times = np.broadcast_to(
        np.array([1.0, BACKWARD_RATIO / 2, BACKWARD_RATIO / 2])[:, None, None], (3, layout.stages, layout.chunks)
    )
    said = caps.too_small(cap, caps.least_cap(layout, times, 0.0))
    if said is not None:
        raise UsageError(f"--dpp-cap: {said}")
    return cap


def _read(layout: Layout, file: Path | None) -> tuple[Layout, list[Order]]:
    if file is None:
        raise UsageError("--dpp-policy replay needs the order to run: add --dpp-order FILE.csv")
    try:
        found, orders_ = read_csv(file.read_text())
    except (OSError, DataError, UnicodeDecodeError) as error:
        raise UsageError(f"--dpp-order {file} can't be read: {error}") from error
    if found.placement is Placement.V:
        raise UsageError(
            f"--dpp-order {file} has V placement, which megatron-core has not: replay an order whose stages hold their "
            "chunks in loops"
        )
    if replace(found, split=layout.split) != layout:
        raise UsageError(f"--dpp-order {file} is an order for {found}, but this run has {layout}")
    ones = np.ones((found.stages, found.operations), np.int64)
    done = run(found, strict(REPLAY, found, orders_), ones, wire(found, Links()))
    if not done.complete:
        raise UsageError(f"--dpp-order {file} is an order that stops for ever: {stuck(done)}")
    return found, orders_
