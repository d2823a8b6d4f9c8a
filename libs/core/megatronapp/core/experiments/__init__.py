"""Experiments on a model that generates: each says which passes it needs, and makes its result of what they show.

An experiment is a generator: it yields a `Pass` and is sent the `Outcome`. So it does no I/O, knows no transport, and
runs over the gateway as over a client (`megatronapp.scope`):

    outcome = Outcome of nothing
    while True: outcome = run(experiment.send(outcome))
"""

from megatronapp.core.experiments.attributions import (
    InputAttribution,
    Surprisal,
    attribution,
    gradient_times_input,
    surprisal,
)
from megatronapp.core.experiments.comparisons import Comparison, SweepPoint, compare, sweep
from megatronapp.core.experiments.passes import (
    Experiment,
    ModelShape,
    Outcome,
    Pass,
    addressed,
    computed_positions,
    scoring,
)
from megatronapp.core.experiments.steering import mean_difference
from megatronapp.core.experiments.tracing import MOST_ROWS, Trace, causal_trace

__all__ = [
    "MOST_ROWS",
    "Comparison",
    "Experiment",
    "InputAttribution",
    "ModelShape",
    "Outcome",
    "Pass",
    "Surprisal",
    "SweepPoint",
    "Trace",
    "addressed",
    "attribution",
    "causal_trace",
    "compare",
    "computed_positions",
    "gradient_times_input",
    "mean_difference",
    "scoring",
    "surprisal",
    "sweep",
]
