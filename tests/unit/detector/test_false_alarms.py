"""How sure an alarm must be: by how long it is to the next one that is none."""

import math

import pytest

from megatronapp.detector import profiles
from megatronapp.detector.judge import log_steps_between_false_alarms, monitor_of
from megatronapp.detector.profiles import DeviceProfile

YEAR = 365 * 86_400


@pytest.mark.parametrize(
    ("profile", "ranks", "step_seconds", "steps"),
    [
        (profiles.GPU, 1024, 30.0, YEAR / 30),
        (profiles.GPU, 1024, 60.0, YEAR / 60),
        (profiles.GPU, 1024, 0.1, 1e7),
        (profiles.GPU, 1024, 3600.0, 1e5),
        (profiles.GPU, 1024, 0.0, 1e5),
        (profiles.GPU, 1024, math.nan, 1e5),
        (profiles.GPU, 8, 0.1, 1e5),
        (profiles.CPU, 1024, 0.1, 1e5),
    ],
)
def test_a_large_job_has_a_false_alarm_a_year_or_in_ten_million_steps(
    profile: DeviceProfile, ranks: int, step_seconds: float, steps: float
) -> None:
    assert log_steps_between_false_alarms(profile, ranks, step_seconds) == pytest.approx(math.log(steps))


def test_ranks_and_signals_share_a_jobs_false_alarms() -> None:
    signals = len(profiles.GPU.noise.keys() - profiles.RARE)

    one, many = (monitor_of(profiles.GPU, "wait", ranks, 10.0).log_threshold for ranks in (1, 1024))

    assert one == pytest.approx(10.0 + math.log(signals))
    assert many == pytest.approx(one + math.log(1024))
