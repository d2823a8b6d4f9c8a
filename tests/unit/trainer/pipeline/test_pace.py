"""When a stage on a GPU chooses: on a device whose operations last as the test says."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.trainer.pipeline.pace import CHOOSING_SECONDS, POLL_SECONDS, Durations, Pace
from tests.support.paced_device import Device

F, B = Kind.FORWARD, Kind.BACKWARD
NEAR = pytest.approx


def launch(device: Device, pace: Pace, operation: Operation, seconds: float) -> None:
    pace.launch(operation, lambda: device.launch(seconds))


def learn(device: Device, *operations: tuple[Operation, float]) -> None:
    """In a step of their own."""
    pace = device.pace()
    for operation, seconds in (*operations, (Operation(F, 0, 99), 1.0)):
        launch(device, pace, operation, seconds)
        pace.wait_until_one_is_left()
    device.now = device.free_at


def test_the_host_is_one_operation_ahead_of_the_device() -> None:
    device = Device()
    pace = device.pace()
    for microbatch in range(2):
        launch(device, pace, Operation(F, 0, microbatch), 0.01)

    pace.wait_until_one_is_left()

    assert device.now == NEAR(0.01)


def test_of_a_lane_of_which_nothing_is_known_nothing_is_waited_for() -> None:
    device = Device()
    pace = device.pace()
    launch(device, pace, Operation(B, 0, 0), 0.01)

    pace.wait_until_it_ends_soon()

    assert device.now == 0


def test_nothing_is_waited_for_where_nothing_runs() -> None:
    device = Device()

    device.pace().wait_until_it_ends_soon()

    assert device.now == 0


@pytest.mark.parametrize("launch_seconds", [0.0, 0.003])
def test_a_choice_waits_until_a_launch_ends_with_the_running_operation(launch_seconds: float) -> None:
    device = Device(launch_seconds=launch_seconds)
    learn(device, (Operation(F, 0, 0), 0.01))
    pace = device.pace()
    launch(device, pace, Operation(F, 0, 0), 0.01)

    pace.wait_until_one_is_left()
    pace.wait_until_it_ends_soon()

    left = device.free_at - device.now - launch_seconds
    assert 0 <= left <= CHOOSING_SECONDS + POLL_SECONDS


def test_a_long_microbatch_is_waited_for_longer() -> None:
    device = Device()
    learn(device, (Operation(F, 0, 0), 0.01), (Operation(B, 0, 0), 0.02))
    pace = device.pace()
    launch(device, pace, Operation(F, 0, 1), 0.03)
    launch(device, pace, Operation(B, 0, 1), 0.06)
    pace.wait_until_one_is_left()
    begun = device.now

    pace.wait_until_it_ends_soon()

    assert device.now - begun == NEAR(0.06 - CHOOSING_SECONDS, abs=5e-3)


def test_an_operation_that_ends_early_is_not_waited_beyond() -> None:
    device = Device()
    learn(device, (Operation(F, 0, 0), 0.01))
    pace, begun = device.pace(), device.now
    launch(device, pace, Operation(F, 0, 0), 0.004)

    pace.wait_until_it_ends_soon()

    assert device.now <= begun + 0.004 + POLL_SECONDS


def test_lanes_that_waver_are_chosen_earlier_by_as_much() -> None:
    steady, wavering = usual([0.01] * 50), usual(np.random.default_rng(0).uniform(0.008, 0.012, 50))

    assert steady == NEAR((0.01, 0.0))
    assert wavering == NEAR((0.01, 0.001), rel=0.1)


def test_the_first_operation_of_a_process_teaches_nothing() -> None:
    assert usual([3.0, *[0.01] * 4]) == NEAR((0.01, 0.0))


def usual(seconds: Iterable[float]) -> tuple[float, float]:
    """What is expected of a lane whose operations have taken so long."""
    durations = Durations()
    for each in seconds:
        durations.begin_step()
        durations.observe(Operation(F, 0, 0), each)
    found = durations.expected(Operation(F, 0, 1))
    assert found is not None
    return found


def test_a_host_whose_order_is_given_goes_on_until_its_device_has_so_many_before_it() -> None:
    device = Device()
    order = device.given_order(3)
    for microbatch in range(3):
        order.wait_until_one_may_be_launched()
        order.launch(Operation(F, 0, microbatch), lambda: device.launch(0.01))
    assert device.now == 0

    order.wait_until_one_may_be_launched()

    assert device.now == NEAR(0.01)
