"""Ten thousand simulated steps whose passes and messages take random times: none stops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.disaggregation.step import PlannedStep
from megatronapp.core.pipeline.disaggregation.tasks import ends
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.recompute import least_slots
from tests.support.brute_force_disaggregation import Cluster
from tests.support.marks import some
from tests.unit.core.pipeline.disaggregation.test_planning import parts

LAYOUTS = 100
STEPS_OF_A_LAYOUT = 100


def drawn(layout: random.Random) -> PlannedStep:
    stages, chunks, each = layout.randint(1, 4), layout.randint(1, 3), layout.randint(1, 3)
    chunks = chunks if stages > 1 else 1
    mode = layout.choice(list(Mode)) if stages > 1 else Mode.LINEARS
    microbatches = stages * layout.randint(1, 3) if chunks > 1 else layout.randint(1, 8)
    layers = stages * chunks * each
    cluster = Cluster(layers=layers, stages=stages, chunks=chunks, microbatches=microbatches)
    model, training, devices = parts(cluster)
    forward_layers = layers - each * (mode is Mode.INPUT)
    slots = least_slots(training.layout) + layout.randint(0, 3)
    mapping = Mapping(mode, 1, layout.randint(1, min(forward_layers, 5)), slots)
    return PlannedStep(model, training, devices, mapping, model.linears_share)


@pytest.mark.long
@pytest.mark.parametrize("seed", some(range(LAYOUTS // 10), lambda seed: seed < 2))
def test_no_delays_stop_a_step_from_the_fewest_slots_up(seed: int) -> None:
    delays = random.Random(seed)

    for number in range(LAYOUTS // 10):
        tasks = drawn(random.Random(1000 * seed + number)).tasks
        for _ in range(STEPS_OF_A_LAYOUT):
            late = {name: replace(task, duration_ns=delays.expovariate(1.0)) for name, task in tasks.items()}
            assert len(ends(late)) == len(tasks)


def test_with_a_slot_too_few_a_step_stops_for_ever() -> None:
    model, training, devices = parts(Cluster(layers=8, stages=4, chunks=2, microbatches=4))
    step = PlannedStep(model, training, devices, Mapping(Mode.INPUT, 1, 1, 1), 0.9)

    with pytest.raises(TrainingError, match="wait for each other for ever"):
        ends(step.tasks)
