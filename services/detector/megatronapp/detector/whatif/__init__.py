"""What-if: the step replayed with other durations, to tell what each slowness costs. Pure; no clocks needed."""

from megatronapp.detector.whatif.cost import cost_ratio, slowdown_ratio
from megatronapp.detector.whatif.graph import Event, Graph, GraphBuilder
from megatronapp.detector.whatif.replay import replay, step_seconds
from megatronapp.detector.whatif.schedule import Compute, schedule_graph, stage_order

__all__ = [
    "Compute",
    "Event",
    "Graph",
    "GraphBuilder",
    "cost_ratio",
    "replay",
    "schedule_graph",
    "slowdown_ratio",
    "stage_order",
    "step_seconds",
]
