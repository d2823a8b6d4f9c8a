"""What choosing while running gains over the static replay of the order that is chosen on a quiet machine, simulated.

The design's figures are of the hint `interleaved`, in which W fills what would be idle: its replay is a weak order.
With W placed (`interleaved-zb`, which `--dpp-policy auto` runs) the replay is much faster and the choice a little, so
that their ratio is smaller. Two chunks a stage, F = B = W, messages of 0.02 F, the cap of stock's peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Engine, Schedule, dynamic, run, strict
from megatronapp.core.pipeline.simulator.times import Variation, constant_durations, equal_times

FORWARD_NS = 10_000_000
FILLING, PLACED = "interleaved", "interleaved-zb"
LINKS = Links(latency_ns=FORWARD_NS // 50)


class Case(NamedTuple):
    """The design's dynamic ÷ replay, by (stages, microbatches), of ten seeds or so."""

    name: str
    variation: Variation
    design: dict[tuple[int, int], float]
    tolerance: float


CASES = (
    Case("jitter cv 0.2", Variation(jitter_cv=0.2), {(4, 16): 1.02, (8, 32): 1.035}, 0.01),
    Case("length cv 0.5", Variation(length_cv=0.5), {(4, 16): 1.055, (8, 32): 1.110}, 0.01),
    Case(
        "5 % of messages 3 F late",
        Variation(late_ratio=0.05, late_ns=3 * FORWARD_NS),
        {(4, 16): 1.29, (8, 32): 1.316},
        0.05,
    ),
)


def rows(seeds: int, engine: Engine | None) -> Iterator[dict[str, Any]]:
    for case in CASES:
        for (stages, microbatches), design in case.design.items():
            layout = Layout(stages=stages, chunks=2, microbatches=microbatches, split=True)
            found = {hint: over_replay(layout, case.variation, hint, seeds, engine) for hint in (FILLING, PLACED)}
            yield {
                "what": f"dynamic ÷ replay, hint {FILLING}, {case.name}, p {stages}, m {microbatches}",
                "simulated": round(found[FILLING], 3),
                "design": design,
                "goal": case.tolerance,
                "ok": abs(found[FILLING] - design) <= case.tolerance,
                f"with {PLACED}": round(found[PLACED], 3),
            }


def over_replay(layout: Layout, variation: Variation, hint: str, seeds: int, engine: Engine | None) -> float:
    """The replay's time ÷ the dynamic order's, over the same draws."""
    times = equal_times(layout, FORWARD_NS, FORWARD_NS, FORWARD_NS)
    cap = [caps.stock_cap(layout)] * layout.stages
    chosen = dynamic("chosen", layout, orders.all_stages(hint, layout), cap)
    wiring = wire(layout, LINKS)
    quiet = run(layout, chosen, constant_durations(layout, times), wiring, engine=engine)
    replay = strict("replay", layout, quiet.orders())
    drawn = [variation.draw(layout, times, np.random.default_rng(seed)) for seed in range(seeds)]

    def total_ns(schedule: Schedule) -> int:
        return sum(_end_ns(layout, schedule, durations, late, engine) for durations, late in drawn)

    return total_ns(replay) / total_ns(chosen)


def _end_ns(layout: Layout, schedule: Schedule, durations: Whole, late: Whole, engine: Engine | None) -> int:
    return run(layout, schedule, durations, wire(layout, LINKS), late=late, engine=engine).end_ns
