"""A step's time, beside a simulator that shares no code with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.pipeline.disaggregation.mapping import Mapping, mappings
from megatronapp.core.pipeline.disaggregation.step import PlannedStep, segments
from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recompute import least_slots
from tests.support.brute_force_disaggregation import Cluster, Way, step_ms
from tests.unit.core.pipeline.disaggregation.test_planning import parts


@given(
    st.integers(2, 3), st.integers(1, 2), st.integers(1, 3), st.sampled_from(Mode), st.sampled_from([5.0, 50.0, 500.0]),
    st.integers(0, 4), st.sampled_from([0.3, 1.0, 2.0]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_it_is_the_brute_force_simulators(
    stages: int, chunks: int, pipeline: int, mode: Mode, link: float, more_slots: int, speed: float
) -> None:
    cluster = Cluster(
        layers=12, stages=stages, chunks=chunks, microbatches=stages * 4, speed=speed, gigabytes_per_second=link
    )
    model, training, devices = parts(cluster)
    slots = least_slots(training.layout, ahead=1) + more_slots

    planned = PlannedStep(model, training, devices, Mapping(mode, 1, pipeline, slots), model.linears_share)

    seen = step_ms(cluster, Way(mode is Mode.LINEARS, 1, pipeline, slots, mode is Mode.LAYERS))
    if planned.paces.link > max(planned.paces.forward, planned.paces.backward):
        assert min(planned.step_ns / 1e6, seen) > cluster.microbatches * planned.paces.link / 1e6
        return  # the simulators share links differently; neither lets them do more than they can
    on_the_way = 3 * planned.paces.link / 1e6  # two that are sent and one that is taken
    assert planned.step_ns / 1e6 == pytest.approx(seen, rel=0.03, abs=on_the_way)


@given(st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.sampled_from(Mode))
def test_segments_are_all_forward_layers_and_each_part_is_fed_once(
    stages: int, chunks: int, each: int, pipeline: int, mode: Mode
) -> None:
    layout = Layout(stages=stages, chunks=chunks, microbatches=stages)
    layers = layout.parts * each
    partition = Partition(layers=layers, backward=layout, forward_stages=pipeline, mode=mode)
    if not pipeline <= partition.forward_layers:
        return

    made = list(segments(partition))

    assert sum(segment.layers for segment in made) == partition.forward_layers
    assert [segment.feeds for segment in made if segment.feeds is not None] == list(range(1, layout.parts))


def test_only_what_runs_is_tried() -> None:
    model, training, devices = parts(Cluster(tensor=2, stages=2, devices=4))

    tried = set(mappings(model, training, devices))

    assert {each.tensor for each in tried if each.mode is Mode.LINEARS} == {2}
    assert {each.tensor for each in tried if each.mode is Mode.INPUT} == {1, 2, 4}
    assert {each.tensor for each in tried if each.mode is Mode.LAYERS} == {1, 2, 4}
    assert max(each.devices for each in tried) == 4


@pytest.mark.parametrize(("pipeline", "hidden"), [(1, 1.0), (2, 0.0)])
def test_the_optimizer_hides_the_first_microbatchs_forward_where_one_stage_runs_it(
    pipeline: int, hidden: float
) -> None:
    model, training, devices = parts(Cluster(layers=12, stages=1, microbatches=8, gigabytes_per_second=1e6))
    mapping = Mapping(Mode.LINEARS, 1, pipeline, slots=3)
    behind_a_tail = replace(training, tail_ns=10 * training.forward_ns)

    steps = [PlannedStep(model, each, devices, mapping, model.linears_share) for each in (training, behind_a_tail)]

    saved_ns = steps[0].step_ns - steps[1].step_ns
    assert saved_ns == pytest.approx(hidden * training.forward_ns / devices.speed, rel=0.01)
