"""Items that were slow before anybody had a history are told by what the many of a job differ in for good."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.profiles import GPU
from megatronapp.detector.statistics.monitor import Monitor

ITEMS, CULPRIT = 256, 7
JITTER = 0.005
LOG_THRESHOLD = 20.0


class Devices:
    """Devices that differ by 0.4 %, one of them by what the test says."""

    def __init__(self) -> None:
        self.monitor = Monitor(GPU.noise["compute_effect"], LOG_THRESHOLD)
        self.random = np.random.default_rng(1)
        self.offsets = self.random.normal(0, 0.004, ITEMS)
        self.step = 0

    def steps(self, count: int, culprit: float) -> list[int]:
        """Returns the steps in which the culprit was alarmed."""
        alarmed = []
        for _ in range(count):
            self.step += 1
            values = self.offsets + self.random.normal(0, JITTER, ITEMS)
            values[CULPRIT] += culprit - self.offsets[CULPRIT]
            self.monitor.observe(self.step, np.arange(ITEMS), values)
            if self.monitor.alarmed[CULPRIT]:
                alarmed.append(self.step)
        return alarmed


def test_one_that_is_slow_from_the_first_step_on_is_told_in_seven_steps() -> None:
    devices = Devices()

    alarmed = devices.steps(10, culprit=0.03)

    assert alarmed[0] <= 7
    assert np.flatnonzero(devices.monitor.alarmed).tolist() == [CULPRIT]


def test_one_that_hardly_shows_it_is_told_when_its_steps_have_added_up() -> None:
    devices = Devices()

    devices.steps(24, culprit=0.021)

    assert np.flatnonzero(devices.monitor.alarmed).tolist() == [CULPRIT]


def test_one_that_recovers_is_not_told_again_of_the_same_steps() -> None:
    devices = Devices()
    devices.steps(15, culprit=0.04)

    after = devices.steps(40, culprit=0.0)

    assert devices.monitor.alarmed.sum() == 0
    assert after == list(range(16, 16 + len(after)))


def test_one_that_was_heard_of_in_a_few_steps_alone_is_not_new_to_be_judged() -> None:
    devices = Devices()
    for step in range(1, 21):
        values = devices.offsets + devices.random.normal(0, JITTER, ITEMS)
        values[CULPRIT] = 0.025 if step > 17 else np.nan
        devices.monitor.observe(step, np.arange(ITEMS), values)

    assert not devices.monitor.alarmed.any()
