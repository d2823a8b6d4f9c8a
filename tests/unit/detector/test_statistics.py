from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.detector.signals.matrix import Compute
from megatronapp.detector.signals.peers import median_of_others
from megatronapp.detector.signals.work import ENOUGH, WorkModel
from megatronapp.detector.statistics import scale, sequential
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.statistics.noise import Noise

NOISE = Noise(floor=0.01, prior=0.02, clip=8, allowance=0.1, smallest=0.02)


@settings(max_examples=60, deadline=None)
@given(members=st.integers(1, 9), missing=st.integers(0, 3), seed=st.integers(0, 10**6))
def test_the_median_of_others_is_numpys(members: int, missing: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(members, 3))
    values[random.integers(0, members, missing), 0] = np.nan
    usable = random.random(members) > 0.3

    found = median_of_others(values, usable)

    for row in range(members):
        others = values[[r for r in range(members) if r != row and usable[r]]]
        for key in range(3):
            known = others[np.isfinite(others[:, key]), key]
            expected = np.median(known) if len(known) else np.nan
            assert found[row, key] == pytest.approx(expected, nan_ok=True)


def test_scale_ignores_outliers() -> None:
    series = np.random.default_rng(0).normal(0, 2.0, (5, 400))
    series[:, :40] = 1000.0

    sigma = scale.scale(series, scale.location(series))

    assert sigma == pytest.approx(np.full(5, 2.2), rel=0.2)


def test_the_tail_sees_bursts_that_the_median_does_not() -> None:
    series = np.random.default_rng(0).normal(0, 0.001, (5, 400))
    series[:, ::10] = 0.2
    center = scale.location(series)

    assert scale.scale(series, center) == pytest.approx(np.full(5, 0.001), rel=0.3)
    assert scale.tail(series, center) == pytest.approx(np.full(5, 0.12), rel=0.1)


def test_the_tail_of_normal_noise_is_its_standard_deviation() -> None:
    series = np.random.default_rng(1).normal(3.0, 2.0, (5, 2000))

    assert scale.tail(series, scale.location(series)) == pytest.approx(np.full(5, 2.0), rel=0.1)


def test_serial_correlation_widens_and_independence_does_not() -> None:
    random = np.random.default_rng(1)
    white = random.normal(size=(20, 200))
    walk = white.copy()
    for t in range(1, 200):
        walk[:, t] += 0.6 * walk[:, t - 1]

    assert scale.correlation_factor(white) < 1.15
    assert scale.correlation_factor(walk) == pytest.approx(2.0, rel=0.2)


def test_false_alarms_are_rarer_than_promised() -> None:
    residuals = np.random.default_rng(2).normal(size=(2000, 200))
    width = int(sequential.WINDOWS[-1])
    alarms = sum(
        int((sequential.evidence(sequential.sums(residuals[:, t : t + width])) >= np.log(1000)).sum())
        for t in range(0, 160, width)
    )

    assert alarms / (2000 * 160) < 1 / 1000


def test_onset_is_where_the_rise_began() -> None:
    residuals = np.zeros(32)
    residuals[:5] = 3.0

    assert sequential.onset(residuals) == 5


def watch(monitor: Monitor, values: np.ndarray) -> None:
    for step, row in enumerate(values, start=1):
        monitor.observe(step, np.arange(len(row)), row)


def test_a_monitor_alarms_on_a_change_and_clears_when_it_is_over() -> None:
    random = np.random.default_rng(3)
    values = random.normal(0, 0.01, (90, 3))
    values[40:60, 1] += 0.06
    monitor = Monitor(NOISE, log_threshold=14.0)

    watch(monitor, values[:50])
    assert monitor.alarmed.tolist() == [False, True, False]
    assert monitor.since[1] == pytest.approx(41, abs=1)
    assert monitor.effect[1] == pytest.approx(0.06, abs=0.01)
    for step in range(50, 90):
        monitor.observe(step + 1, np.arange(3), values[step])
    assert not monitor.alarmed.any()


def test_the_history_is_frozen_while_alarmed() -> None:
    values = np.random.default_rng(4).normal(0, 0.01, (300, 1))
    values[40:] += 0.1
    monitor = Monitor(NOISE, log_threshold=14.0)

    watch(monitor, values)

    assert monitor.alarmed.all()
    assert monitor.baseline[0] == pytest.approx(0.0, abs=0.01)


def test_the_noise_of_others_is_learnt_while_one_is_alarmed() -> None:
    random = np.random.default_rng(13)
    values = random.normal(0, 0.012, (400, 8))
    values[60:, 0] += 0.2
    values[100:, 1:] *= 1.6
    monitor = Monitor(NOISE, log_threshold=14.0)

    watch(monitor, values[:100])
    before = float(monitor.sigma[1])
    for step, row in enumerate(values[100:], start=101):
        monitor.observe(step, np.arange(8), row)

    assert monitor.alarmed.tolist() == [True] + [False] * 7
    assert float(monitor.sigma[1]) > 1.3 * before


def test_steps_in_which_an_item_was_not_measured_are_none_of_its_slow_ones() -> None:
    values = np.random.default_rng(14).normal(0, 0.01, (50, 3))
    values[40:, 1] += 0.2
    values[43:, 1] = np.nan
    monitor = Monitor(NOISE, log_threshold=14.0)

    watch(monitor, values)

    assert monitor.alarmed.tolist() == [False, True, False]
    assert (monitor.steps_since(1), monitor.slow_steps(1)) == (10, 3)


def test_what_comes_and_goes_is_one_alarm_until_it_is_over() -> None:
    values = np.random.default_rng(15).normal(0, 0.01, (400, 8))
    values[100:300:4, 5] += 0.2
    monitor, alarmed = Monitor(NOISE, log_threshold=14.0), list[bool]()

    for step, row in enumerate(values, start=1):
        monitor.observe(step, np.arange(8), row)
        alarmed.append(bool(monitor.alarmed[5]))

    rises = [step for step in range(1, 400) if alarmed[step] and not alarmed[step - 1]]
    assert len(rises) == 1
    assert all(alarmed[rises[0] : 297])
    assert not alarmed[-1]


def test_one_outlier_is_no_alarm_where_tails_are_heavy() -> None:
    values = np.random.default_rng(5).normal(0, 0.01, (60, 2))
    values[45, 0] = 5.0
    monitor = Monitor(Noise(floor=0.01, prior=0.02, clip=4, allowance=0.1, smallest=0.02), log_threshold=14.0)

    watch(monitor, values)

    assert not monitor.alarmed.any()


def test_two_steps_raise_no_alarm_however_slow_they_are_and_three_do() -> None:
    noise = Noise(floor=0.01, prior=0.01, clip=sequential.clip(14.0, 3), allowance=np.inf, smallest=0.02)
    values = np.random.default_rng(5).normal(0, 0.01, (60, 1))
    values[45:48] = 5.0
    monitor = Monitor(noise, log_threshold=14.0)

    watch(monitor, values[:47])
    assert not monitor.alarmed.any()
    monitor.observe(48, np.arange(1), values[47])
    assert monitor.alarmed.all()


def test_outliers_that_are_usual_raise_no_alarm_and_hide_no_rank_that_is_slow() -> None:
    random = np.random.default_rng(11)
    values = np.where(random.random((600, 1024)) < 0.02, 0.3, random.normal(0, 0.005, (600, 1024)))
    values[580:, 17] += 0.05
    threshold = 21.0
    noise = Noise(0.0033, 0.01, clip=sequential.clip(threshold, 3), allowance=np.inf, smallest=0.02)
    monitor = Monitor(noise, threshold)
    ever = np.zeros(1024, bool)

    for step, row in enumerate(values[:580], start=1):
        monitor.observe(step, np.arange(1024), row)
        ever |= monitor.alarmed
    assert not ever.any()
    for step, row in enumerate(values[580:], start=581):
        monitor.observe(step, np.arange(1024), row)
    assert np.flatnonzero(monitor.alarmed).tolist() == [17]


def test_an_offset_is_over_when_it_is_one_that_healthy_items_may_have() -> None:
    random = np.random.default_rng(12)
    values = random.normal(0, 0.004, 64) + random.normal(0, 0.004, (60, 64))
    values[:, 5] += 0.012 - values[:, 5].mean()
    values[4:12, 5] += 0.04
    monitor = Monitor(Noise(0.0033, 0.01, clip=4.5, allowance=0.05, smallest=0.02, peers=True), log_threshold=16.0)

    watch(monitor, values[:12])
    assert np.flatnonzero(monitor.alarmed).tolist() == [5]
    for step, row in enumerate(values[12:], start=13):
        monitor.observe(step, np.arange(64), row)
    assert not monitor.alarmed.any()


def wandering(items: int, steps: int, *, seed: int = 7) -> np.ndarray:
    """A first-order autoregression with coefficient 0.95 and standard deviation 1."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(steps, items))
    for step in range(1, steps):
        values[step] = 0.95 * values[step - 1] + np.sqrt(1 - 0.95**2) * values[step]
    return values


def test_noise_that_wanders_raises_no_alarm_in_a_large_job_and_hides_no_rank_that_is_slow() -> None:
    values = 0.007 * wandering(256, 400)
    values[300:, 17] += 0.06
    monitor = Monitor(Noise(floor=0.0033, prior=0.01, clip=4.5, allowance=np.inf, smallest=0.0), log_threshold=16.0)
    ever = np.zeros(256, bool)

    for step, row in enumerate(values[:300], start=1):
        monitor.observe(step, np.arange(256), row)
        ever |= monitor.alarmed
    assert not ever.any()
    for step, row in enumerate(values[300:320], start=301):
        monitor.observe(step, np.arange(256), row)
    assert np.flatnonzero(monitor.alarmed).tolist() == [17]


@pytest.mark.parametrize("together", [False, True])
def test_where_most_are_slow_at_once_it_is_no_news_unless_a_fault_may_do_that(together: bool) -> None:
    values = np.random.default_rng(9).normal(0, 0.01, (60, 64))
    values[45:, :40] += 0.2
    noise = Noise(floor=0.01, prior=0.01, clip=4.5, allowance=np.inf, smallest=0.02, together=together)
    monitor = Monitor(noise, log_threshold=16.0)

    watch(monitor, values)

    assert np.flatnonzero(monitor.alarmed).tolist() == (list(range(40)) if together else [])


def test_items_of_a_kind_that_does_not_vary_do_not_make_others_look_quieter_than_they_are() -> None:
    random = np.random.default_rng(10)
    kinds = np.repeat([0, 1], 256)
    monitor = Monitor(
        Noise(floor=0.01, prior=0.1, clip=4.5, allowance=np.inf, smallest=0.1, together=True), log_threshold=16.0
    )

    for step in range(1, 31):
        monitor.observe(step, np.arange(512), np.where(kinds == 1, random.normal(0, 0.08, 512), 0.0), kinds)

    assert monitor.ready.all()
    assert monitor.sigma[kinds == 1].min() >= 0.08


@pytest.mark.parametrize(("history", "alarmed"), [(20, False), (64, True)])
def test_a_baseline_that_few_steps_tell_raises_no_alarm_that_its_own_error_may_explain(
    history: int, alarmed: bool
) -> None:
    noise = Noise(floor=0.1, prior=0.1, clip=8.0, allowance=np.inf, smallest=0.02, together=True)
    monitor = Monitor(noise, log_threshold=16.0)
    quiet = np.tile([0.01, -0.01], history // 2)
    slow = 1.06 * sequential.needed(16.0)[list(sequential.WINDOWS).index(3)] * noise.floor / 3

    watch(monitor, np.concatenate([quiet, np.full(3, slow)])[:, None])

    assert monitor.alarmed.tolist() == [alarmed]


@pytest.mark.parametrize(("steps", "samples"), [(3, 20), (16, 40), (64, 64)])
def test_sums_vary_more_by_as_much_as_the_baseline_may_be_off(steps: int, samples: int) -> None:
    values = np.random.default_rng(13).normal(size=(4000, samples + steps))
    baseline = np.median(values[:, :samples], axis=1)

    sums = (values[:, samples:] - baseline[:, None]).sum(axis=1) / np.sqrt(steps)

    factor = scale.baseline_factor(np.array([steps]), np.array([samples]))
    assert float(factor[0, 0]) == pytest.approx(float(sums.std()), rel=0.05)


@pytest.mark.parametrize(("spread", "alarmed"), [(0.004, [3]), (0.02, [])], ids=["alike", "spread"])
def test_an_offset_from_the_first_step_is_judged_by_how_much_the_job_s_devices_differ(
    spread: float, alarmed: list[int]
) -> None:
    random = np.random.default_rng(8)
    offsets = np.append(random.normal(0, spread, 255), 0.0)
    offsets[3] = 0.05
    noise = Noise(floor=0.0033, prior=0.01, clip=4.5, allowance=0.05, smallest=0.02, changes=False, peers=True)
    monitor = Monitor(noise, log_threshold=16.0)

    watch(monitor, offsets + random.normal(0, 0.003, (60, 256)))

    assert np.flatnonzero(monitor.alarmed).tolist() == alarmed


def test_work_is_learnt_from_the_covariates() -> None:
    random, model = np.random.default_rng(6), WorkModel()
    stage = np.zeros(8, np.int64)
    healthy, load = np.ones(8, bool), np.ones(8)
    for _ in range(2 * ENOUGH):
        squares = random.uniform(1e5, 5e5, (8, 1))
        tokens = np.full((8, 1), 1024.0)
        seconds = 1e-3 + 2e-8 * squares
        compute = Compute(
            ("forward",), (0,), seconds, np.ones((8, 1)), tokens, squares, seconds, np.ones((8, 1)), seconds
        )
        varying = model.varying(compute, stage, load)
        ratio = model.relative(compute, load, varying).total
        model.learn(compute, load, varying, healthy)

    expected = (1e-3 + 2e-8 * squares) / (1e-3 + 2e-8 * squares.mean())
    assert ratio == pytest.approx(expected, rel=1e-3)


def test_what_experts_cost_is_learnt_apart_from_the_sequences() -> None:
    random, model = np.random.default_rng(7), WorkModel()
    stage, healthy = np.zeros(8, np.int64), np.ones(8, bool)
    for _ in range(4 * ENOUGH):
        squares = random.uniform(1e5, 5e5, (8, 1))
        load = random.uniform(0.5, 1.5, 8)
        load /= load.mean()
        seconds = 1e-3 + 2e-8 * squares + 4e-3 * load[:, None]
        tokens = np.full((8, 1), 1024.0)
        compute = Compute(
            ("forward",), (0,), seconds, np.ones((8, 1)), tokens, squares, seconds, np.ones((8, 1)), seconds
        )
        varying = model.varying(compute, stage, load)
        work = model.relative(compute, load, varying)
        model.learn(compute, load, varying, healthy)

    mean = 1e-3 + 2e-8 * squares.mean() + 4e-3
    assert work.total == pytest.approx(seconds / mean, rel=1e-3)
    assert work.experts == pytest.approx((mean + 4e-3 * (load[:, None] - 1)) / mean, rel=1e-3)


def test_a_slow_rank_is_not_excused_by_a_load_that_is_a_little_larger_always() -> None:
    model, stage, healthy = WorkModel(), np.zeros(2, np.int64), np.ones(2, bool)
    load, one = np.array([0.99, 1.01]), np.ones((2, 1))
    seconds = np.array([[1.0], [1.3]])
    compute = Compute(("forward",), (0,), seconds, one, 1024 * one, one, seconds, one, seconds)
    for _ in range(2 * ENOUGH):
        model.learn(compute, load, model.varying(compute, stage, load), healthy)

    total = model.relative(compute, load, model.varying(compute, stage, load)).total
    assert total == pytest.approx(np.array([[0.99], [1.01]]), abs=1e-3)
