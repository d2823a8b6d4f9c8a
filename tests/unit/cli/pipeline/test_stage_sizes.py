"""`plan --trace --layers`: sizes of stages by a recorded run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from megatronapp.cli.main import app
from megatronapp.cli.pipeline.options import Asked
from megatronapp.cli.pipeline.stage_sizes import Model, proposed, text
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
from megatronapp.core.pipeline.stage_sizes import Vocabulary
from tests.support.typed import typed

LAYERS, LAYER_NS = 32, np.array([1e6, 1e6, 1e6])
LAYOUT = Layout(stages=4, microbatches=16)


def planned(head_layers: float) -> tuple[Plan, Model]:
    """For a recorded run whose last stage holds so many layers' work beside its own."""
    times = LAYER_NS[:, None, None] * LAYERS / LAYOUT.parts * np.ones((3, LAYOUT.stages, LAYOUT.chunks))
    times[:, -1, -1] += LAYER_NS * head_layers
    schedule = strict("1f1b", LAYOUT, orders.all_stages("1f1b", LAYOUT))
    done = run(LAYOUT, schedule, constant_durations(LAYOUT, times), wire(LAYOUT, Links()))
    recorded = Recorded(LAYOUT, done.begins[None], done.ends[None])
    setting = Setting(variation=Variation(samples=recorded.samples(0.5)), links=Links(), end=StepEnd())
    question = Asked(LAYOUT.stages, LAYOUT.microbatches, recorded, setting, WHOLE, 1, (0.0, 0.0, 0.0), 0.5)
    return plan(LAYOUT, question.times(LAYOUT), setting), Model(question, LAYERS, Vocabulary())


def plan(layout: Layout, times: PassTimes, setting: Setting) -> Plan:
    return make_plan([layout], [times], setting)


def test_a_stage_that_holds_the_head_is_to_have_fewer_layers() -> None:
    made, model = planned(head_layers=3.0)

    found = proposed(made, model, LAYERS, plan)

    sizes = found["decoder_first_pipeline_num_layers"], found["decoder_last_pipeline_num_layers"]
    assert sizes == (8, 6)
    assert found["gain_ratio"] > 1.1  # the busiest stage has 9 layers' work in place of 11
    assert "--decoder-last-pipeline-num-layers 6" in text(found)


def test_where_stages_take_the_same_they_stay_equal() -> None:
    made, model = planned(head_layers=0.0)

    assert proposed(made, model, LAYERS, plan) == {}


def test_a_recording_tells_what_the_head_takes_by_itself() -> None:
    _, model = planned(head_layers=3.0)

    with pytest.raises(UsageError, match=r"a recording tells .* leave --embedding-layers and --head-layers out"):
        replace(model, vocabulary=Vocabulary(head=3.0))


FOUR = "plan --stages 4 --microbatches 16 --forward-ms 8 --dgrad-ms 8 --wgrad-ms 8"


def test_without_a_recording_the_head_is_given_in_layers() -> None:
    answer = json.loads(typed(app, f"{FOUR} --chunks 1,2 --layers {LAYERS} --head-layers 4 --json"))
    equal = json.loads(typed(app, f"{FOUR} --json"))

    assert answer["stage_sizes"]["decoder_last_pipeline_num_layers"] < 8
    assert answer["stage_sizes"]["gain_ratio"] > 1.05
    assert answer["chosen"]["step_ms"] > equal["chosen"]["step_ms"] * 1.2, "the last stage holds half as much again"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"--layers {LAYERS}", "add --trace, --head-layers or --embedding-layers"),
        ("--head-layers 2", "need the model's number of layers: add --layers"),
        (f"--layers {LAYERS} --head-layers nan", "are from 0 to 1024"),
        (f"--layers {LAYERS} --embedding-layers -1", "are from 0 to 1024"),
        ("--layers 30 --head-layers 2", "--layers 30 can't be those of 4 equal parts"),
        (
            f"--layers {LAYERS} --head-layers 2 --forward-devices 4",
            "--head-layers has no meaning with --forward-devices",
        ),
    ],
)
def test_what_is_missing_or_senseless_is_said_in_one_line(arguments: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed(app, f"{FOUR} {arguments}")
