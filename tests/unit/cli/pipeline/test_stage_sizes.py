"""`plan --trace --layers`: sizes of stages by a recorded run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatronapp.cli.main import app
from megatronapp.cli.pipeline.options import Asked
from megatronapp.cli.pipeline.stage_sizes import proposed, text
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.lanes import WHOLE
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.planning import Plan, make_plan
from megatronapp.core.pipeline.simulator.run import run, strict
from megatronapp.core.pipeline.simulator.steps import Setting, StepEnd
from megatronapp.core.pipeline.simulator.times import Variation, constant_durations
from tests.support.typed import typed

LAYERS, LAYER_NS = 32, np.array([1e6, 1e6, 1e6])
LAYOUT = Layout(stages=4, microbatches=16)


def planned(head_layers: float) -> tuple[Plan, Asked]:
    """For a recorded run whose last stage holds so many layers' work beside its own."""
    times = LAYER_NS[:, None, None] * LAYERS / LAYOUT.parts * np.ones((3, LAYOUT.stages, LAYOUT.chunks))
    times[:, -1, -1] += LAYER_NS * head_layers
    schedule = strict("1f1b", LAYOUT, orders.all_stages("1f1b", LAYOUT))
    done = run(LAYOUT, schedule, constant_durations(LAYOUT, times), wire(LAYOUT, Links()))
    recorded = Recorded(LAYOUT, done.begins[None], done.ends[None])
    setting = Setting(variation=Variation(samples=recorded.samples(0.5)), links=Links(), end=StepEnd())
    question = Asked(LAYOUT.stages, LAYOUT.microbatches, recorded, setting, WHOLE, 1, (0.0, 0.0, 0.0), 0.5)
    return plan(question.times(LAYOUT), setting), question


def plan(times: PassTimes, setting: Setting) -> Plan:
    return make_plan([LAYOUT], [times], setting)


def test_a_stage_that_holds_the_head_is_to_have_fewer_layers() -> None:
    made, question = planned(head_layers=3.0)

    found = proposed(made, question, LAYERS, plan)

    sizes = found["decoder_first_pipeline_num_layers"], found["decoder_last_pipeline_num_layers"]
    assert sizes == (8, 6)
    assert found["gain_ratio"] > 1.1  # the busiest stage has 9 layers' work in place of 11
    assert "--decoder-last-pipeline-num-layers 6" in text(found)


def test_where_stages_take_the_same_they_stay_equal() -> None:
    made, question = planned(head_layers=0.0)

    assert proposed(made, question, LAYERS, plan) == {}


def test_without_a_recording_nothing_is_known_of_a_layer() -> None:
    made, question = planned(head_layers=0.0)

    with pytest.raises(UsageError, match="add --trace"):
        proposed(made, replace(question, recorded=None), LAYERS, plan)
    with pytest.raises(UsageError, match="add --trace"):
        typed(app, f"plan --stages 4 --microbatches 8 --layers {LAYERS}")
