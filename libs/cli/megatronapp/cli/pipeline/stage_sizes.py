"""`plan --layers`: how many layers the first and the last stage should have, by what stages took in a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from megatronapp.cli.pipeline.options import Asked
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.simulator.planning import WORTH, Plan
from megatronapp.core.pipeline.simulator.steps import Setting
from megatronapp.core.pipeline.stage_sizes import LayerTimes

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"


def proposed(made: Plan, question: Asked, layers: int, plan: Callable[[PassTimes, Setting], Plan]) -> dict[str, Any]:
    """What `plan` chooses for stages of the best sizes; nothing where equal ones are as good. Raises UsageError."""
    if question.recorded is None:
        raise UsageError("--layers tells what a layer takes from a recording: add --trace, or leave --layers out")
    layout = made.chosen.candidate.layout
    times = question.times(layout)
    measured = LayerTimes(layout, layers, times)
    sizes = measured.balanced()
    added = measured.added(sizes)
    variation = question.setting.variation
    samples = {key: np.maximum(1.0, taken + added[key]) for key, taken in variation.samples.items()}
    setting = replace(question.setting, variation=replace(variation, samples=samples))
    chosen = plan(np.maximum(1.0, times + added), setting).chosen
    gain = made.chosen.step_ns / chosen.step_ns
    if gain <= 1 + WORTH:
        return {}
    return {
        FIRST: sizes.first,
        LAST: sizes.last,
        "schedule": chosen.candidate.name,
        "step_ms": round(chosen.step_ns / 1e6, 4),
        "gain_ratio": round(gain, 4),
    }


def text(found: dict[str, Any]) -> str:
    if not found:
        return "stages are best with equally many layers"
    flags = " ".join(f"--{name.replace('_', '-')} {found[name]}" for name in (FIRST, LAST))
    return f"with {flags} run {found['schedule']}: {found['gain_ratio']:.3f} times as fast again"
