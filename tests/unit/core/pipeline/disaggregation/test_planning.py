"""Whether MegaFBD pays, on twelve clusters, each checked by a simulator that shares no code with the planner."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.planning import LEAST_GAIN, Plan, make_plan
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout
from tests.support import brute_force_disaggregation as brute
from tests.support.brute_force_disaggregation import Cluster

GIB = 2**30


class Row(NamedTuple):
    cluster: Cluster
    mode: Mode | None
    """That pays."""
    said: str = ""


FULL = 40.0
"""GiB of a training device that fit full recompute alone."""
TABLE = {
    "equal devices, activations fit": Row(Cluster(device_memory_gib=80.0), None, "as replicas that train"),
    "equal devices, full recompute": Row(
        Cluster(memory_gib=FULL, device_memory_gib=FULL, devices=1), None, "as replicas that train"
    ),
    "equal devices, one for two, in place of full recompute": Row(
        Cluster(stages=8, microbatches=64, memory_gib=32.0, device_memory_gib=32.0, gigabytes_per_second=450.0),
        None,
        "as replicas that train",
    ),
    "added, slow link, against full recompute": Row(
        Cluster(memory_gib=FULL, gigabytes_per_second=12.0, devices=2), Mode.INPUT
    ),
    "added, fast link, against full recompute": Row(Cluster(memory_gib=FULL, gigabytes_per_second=450.0), Mode.INPUT),
    "added, memory for one layer at a time": Row(Cluster(memory_gib=35.0), Mode.LAYERS),
    "added, fast link, against none": Row(Cluster(gigabytes_per_second=450.0), Mode.LINEARS),
    "older devices of a third": Row(Cluster(memory_gib=FULL, speed=0.4, devices=3), Mode.INPUT),
    "older devices, two for a tensor pair": Row(
        Cluster(memory_gib=22.0, tensor=2, speed=0.35, devices=6, device_memory_gib=16.0), Mode.INPUT
    ),
    "older devices, too slow": Row(Cluster(memory_gib=FULL, speed=0.1, devices=2), None, "forward devices take"),
    "CPU cores": Row(
        Cluster(memory_gib=FULL, speed=0.01, devices=4, device_memory_gib=256.0), None, "forward devices take"
    ),
    "slow link, activations fit": Row(Cluster(gigabytes_per_second=3.0), None, "fit without recompute"),
    "one stage, link too slow": Row(
        Cluster(layers=8, stages=1, devices=1, gigabytes_per_second=1.0), None, "the link takes"
    ),
}
SLOWER = (
    "equal devices, one for two, in place of full recompute",
    "added, fast link, against full recompute",
    "CPU cores",
)
"""Which others resemble in what pays and why."""


def planned(cluster: Cluster) -> Plan:
    model, training, devices = parts(cluster)
    return make_plan(model, training, devices)


def parts(cluster: Cluster) -> tuple[Model, Training, ForwardDevices]:
    model = Model(
        layers=cluster.layers, hidden=cluster.hidden, sequence=cluster.sequence, batch=1, ffn=4 * cluster.hidden,
        qkv_width=3 * cluster.hidden, vocabulary=cluster.vocabulary,
        groups=cluster.hidden // 128,
    )  # fmt: skip
    training = Training(
        layout=Layout(stages=cluster.stages, microbatches=cluster.microbatches, chunks=cluster.chunks),
        tensor=cluster.tensor, replicas=1, forward_ns=cluster.forward_ms * 1e6, dgrad_ns=cluster.dgrad_ms * 1e6,
        wgrad_ns=cluster.wgrad_ms * 1e6, memory_bytes=cluster.memory_gib * GIB,
    )  # fmt: skip
    devices = ForwardDevices(
        count=cluster.devices, speed=cluster.speed, memory_bytes=cluster.device_memory_gib * GIB,
        bytes_per_second=cluster.gigabytes_per_second * 1e9,
    )  # fmt: skip
    return model, training, devices


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=name, marks=pytest.mark.long if name in SLOWER else ()) for name, row in TABLE.items()],
)
def test_the_choice_is_the_brute_force_simulators(row: Row) -> None:
    plan = planned(row.cluster)
    stock = brute.baseline_ms(row.cluster)
    best = min(brute.step_ms(row.cluster, way) for way in brute.ways(row.cluster))

    assert plan.baseline.step_ns / 1e6 == pytest.approx(stock, rel=1e-6)
    assert plan.chosen is not None
    assert plan.chosen.step_ns / 1e6 == pytest.approx(best, rel=0.03)
    assert plan.pays is (stock / best >= LEAST_GAIN) is (row.mode is not None)
    assert row.said in plan.reason
    if row.mode is not None:
        assert plan.chosen.mapping.mode is row.mode


@given(
    stages=st.integers(1, 4),
    microbatches=st.integers(2, 12),
    tensor=st.integers(1, 2),
    devices=st.integers(1, 6),
    gigabytes_per_second=st.sampled_from([1.0, 50.0, 1e5]),
)
@settings(max_examples=20, deadline=None)
def test_equal_devices_never_pay_against_no_recompute(**sizes: Any) -> None:
    """From two microbatches on: of a single one gradients go on before those of weights are computed, which pays."""
    cluster = Cluster(layers=12, memory_gib=1e4, device_memory_gib=1e4, **sizes)

    plan = planned(cluster)

    assert not plan.pays
    assert plan.chosen is None or plan.chosen.gain <= 1


def test_a_single_microbatch_gains_what_the_brute_force_simulator_says() -> None:
    cluster = Cluster(layers=12, memory_gib=1e4, device_memory_gib=1e4, stages=4, microbatches=1, devices=1)

    plan = planned(cluster)

    best = min(brute.step_ms(cluster, way) for way in brute.ways(cluster))
    assert plan.chosen is not None
    assert plan.chosen.gain == pytest.approx(brute.baseline_ms(cluster) / best, rel=1e-6)


def test_fewest_devices_and_slots_are_chosen_of_those_as_fast() -> None:
    plan = planned(replace(TABLE["added, fast link, against full recompute"].cluster, microbatches=8))

    assert plan.chosen is not None
    as_fast = [each for each in plan.tried if each.step_ns <= plan.tried[0].step_ns * 1.01]
    least = min((each.mapping.devices, each.mapping.slots) for each in as_fast)
    assert (plan.chosen.mapping.devices, plan.chosen.mapping.slots) == least


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"memory_gib": 10.0}, "the training needs .* GiB a device with full recompute, which has 10.0: raise"),
        ({"layers": 30}, "30 layers can't be cut into 4 equal parts"),
        ({"devices": 0}, "0 forward devices run nothing"),
        ({"speed": 0.0}, "speed is a share"),
        ({"forward_ms": float("nan")}, "times must be positive"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned(replace(Cluster(), **changed))


def test_what_fits_on_no_device_is_refused_with_what_it_needs() -> None:
    plan = planned(replace(Cluster(microbatches=4), device_memory_gib=1.0))

    assert plan.chosen is None
    assert not plan.pays
    assert re.match("a forward device has to hold .* GiB or more: add devices", plan.reason)


def test_where_no_mode_runs_it_is_said_what_each_needs() -> None:
    plan = make_plan(*parts(Cluster(microbatches=4)), choices=[])

    assert plan.chosen is None
    assert plan.reason.startswith("no mapping runs: input needs two or more pipeline stages")
