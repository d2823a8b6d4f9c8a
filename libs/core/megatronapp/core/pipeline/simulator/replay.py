"""A recorded step predicted from its orders and durations, and from what messages took in the other steps."""

from __future__ import annotations

from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Engine, Run, run, strict


def replay_recorded(recorded: Recorded, step: int, *, messages: bool = True, engine: Engine | None = None) -> Run:
    """Messages take the receiving stage's time, each as long as it took on the mean of the other steps; without
    `messages` none. Raises UsageError when a stage ran its operations in an order that lanes do not have."""
    layout = recorded.layout
    schedule = strict("recorded", layout, recorded.orders(step))
    late = recorded.message_ns(step) if messages else None
    wiring = wire(layout, Links(blocking=messages))
    return run(layout, schedule, recorded.durations[step], wiring, late=late, engine=engine)
