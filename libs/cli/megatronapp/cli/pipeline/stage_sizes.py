"""`plan --layers`: how many layers the first and the last stage should have, by what stages took in a recording, or by
what the embedding and the output layer are said to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatronapp.cli.pipeline.options import Asked
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.planning import WORTH, Plan
from megatronapp.core.pipeline.simulator.steps import Setting
from megatronapp.core.pipeline.stage_sizes import LayerTimes, Vocabulary

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"


@dataclass(frozen=True, slots=True)
class Model:
    """Of so many layers, whose first and last part hold more than layers. Raises UsageError."""

    question: Asked
    layers: int | None
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        said = self.vocabulary != Vocabulary()
        if said and self.question.recorded is not None:
            raise UsageError(
                "a recording tells what first and last stage take: leave --embedding-layers and --head-layers out"
            )
        if said and self.layers is None:
            raise UsageError("--embedding-layers and --head-layers need the model's number of layers: add --layers")
        if self.layers is not None and not said and self.question.recorded is None:
            raise UsageError(
                "--layers needs to know what first and last stage hold beside layers: add --trace, --head-layers or "
                "--embedding-layers, or leave --layers out"
            )

    def times(self, layout: Layout) -> PassTimes:
        """With equally many layers on each stage."""
        return self.question.times(layout) if self.layers is None else self.measured(layout, self.layers).times

    def measured(self, layout: Layout, layers: int) -> LayerTimes:
        times = self.question.times(layout)
        if self.question.recorded is not None:
            return LayerTimes(layout, layers, times)
        layer = times[:, 0, 0] * layout.parts / max(1, layers)
        return LayerTimes(layout, layers, self.vocabulary.added_to(layout, times, layer), layer)


Planned = Callable[[Layout, PassTimes, Setting], Plan]


def proposed(made: Plan, model: Model, layers: int, plan: Planned) -> dict[str, Any]:
    """What `plan` chooses for stages of the best sizes; nothing where equal ones are as good. Raises UsageError."""
    layout, question = made.chosen.candidate.layout, model.question
    measured = model.measured(layout, layers)
    times, sizes = measured.times, measured.balanced()
    added = measured.added(sizes)
    variation = question.setting.variation
    samples = {key: np.maximum(1.0, taken + added[key]) for key, taken in variation.samples.items()}
    setting = replace(question.setting, variation=replace(variation, samples=samples))
    chosen = plan(replace(layout, split=False), np.maximum(1.0, times + added), setting).chosen
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
