"""Nobody is woken for nothing: clean jobs with the noise of shared CPU hosts."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.detecting import detect
from tests.support.simulated import CPU, GPU, Job, Layout, NoiseModel

LAYOUTS = st.sampled_from(
    [Layout(), Layout(pp=4, dp=1), Layout(pp=1, dp=4), Layout(pp=2, dp=1, vpp=2), Layout(pp=1, dp=2, tp=2)]
)
NOISE = st.builds(
    NoiseModel,
    step=st.floats(0.03, 0.12),
    slow=st.floats(0.0, 0.04),
    offset=st.floats(0.0, 0.03),
    outliers=st.floats(0.0, 0.03),
    common=st.floats(0.0, 0.2),
    wall=st.floats(0.01, 0.3),
)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layout=LAYOUTS, noise=NOISE, seed=st.integers(0, 10**6), last_stage=st.sampled_from([1.0, 1.4]))
def test_two_hundred_clean_runs_on_cpus_page_nobody(
    layout: Layout, noise: NoiseModel, seed: int, last_stage: float
) -> None:
    job = Job(layout, noise, seed=seed, on_cpu=True, last_stage=last_stage)

    assert detect(job, 32).paged() == []


def test_a_long_clean_run_pages_nobody() -> None:
    for on_cpu, noise in ((False, GPU), (True, CPU)):
        assert detect(Job(Layout(pp=2, dp=4), noise, seed=20, on_cpu=on_cpu), 200).paged() == []
