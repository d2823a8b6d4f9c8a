"""Items that were slow before anybody had a history are told by what the many of a job differ in for good."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.profiles import GPU
from megatronapp.detector.statistics import offsets
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


def test_what_newest_steps_do_not_show_fades_long_before_it_is_over_for_certain() -> None:
    """It was hardly more than what devices may differ by, as a slow device's whose node had a burst."""
    devices = Devices()
    devices.steps(10, culprit=0.024)
    assert not devices.monitor.fading(CULPRIT)

    devices.steps(5, culprit=0.007)

    assert devices.monitor.alarmed[CULPRIT]
    assert devices.monitor.fading(CULPRIT)


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


def test_new_items_are_looked_at_as_often_as_is_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, looks, extraordinary = Devices(), list[tuple[int, float]](), offsets.extraordinary

    def looked_at(values: np.ndarray, share: float) -> np.ndarray:
        looks.append((values.shape[1], share))
        return extraordinary(values, share)

    monkeypatch.setattr(offsets, "extraordinary", looked_at)

    devices.steps(100, culprit=0.0)

    assert looks == list(offsets.LOOKS.items())
    assert sum(offsets.LOOKS.values()) == pytest.approx(1)


def test_three_steps_far_off_tell_of_a_new_one_unless_many_others_have_such_steps() -> None:
    random = np.random.default_rng(2)
    even, heavy = random.normal(0, JITTER, (1024, 10)), JITTER / np.sqrt(3) * random.standard_t(3, (1024, 10))

    assert _alarmed_after(even) == [CULPRIT]
    assert _alarmed_after(heavy) == []


def test_steps_far_off_tell_of_one_with_a_history_unless_many_others_have_such_steps() -> None:
    random = np.random.default_rng(3)
    even = random.normal(0, 0.13, (1024, 70))
    skewed = np.log(0.7 + 0.3 * np.exp(random.normal(0, 0.43, (1024, 70))))
    skewed -= np.median(skewed)

    assert _alarmed_after(even, 0.5, 0.6, 0.72, 0.5) == [CULPRIT]
    assert _alarmed_after(skewed, 0.5, 0.6, 0.72, 0.5) == []


def _alarmed_after(values: np.ndarray, *culprits: float) -> list[int]:
    """values (items × steps), of whose last ones the culprit's are these."""
    newest = culprits or (0.054, 0.049, 0.034)
    values[CULPRIT, -len(newest) :] = newest
    monitor = Monitor(GPU.noise["compute_effect"], LOG_THRESHOLD)
    for step, of_items in enumerate(values.T):
        monitor.observe(step, np.arange(len(values)), of_items)
    return [int(item) for item in np.flatnonzero(monitor.alarmed)]
