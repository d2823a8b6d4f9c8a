"""Experts: a rank whose experts are given more tokens has more to do, and is no slow one."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.signals import experts
from tests.support.detecting import detect
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

LAYOUT = Layout(pp=2, dp=4)
HOT = (0.7, 0.8, 0.8, 1.7)


def test_the_load_is_read_from_what_ranks_send() -> None:
    verdicts = detect(Job(LAYOUT, GPU, expert_load=HOT, seed=1), 10)
    assert verdicts.engine.newest is not None

    load = experts.load(verdicts.engine.newest)

    assert load == pytest.approx(np.tile(HOT, 2), rel=0.25)
    assert load[:4].mean() == pytest.approx(1)


@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_unequal_experts_are_advice_and_page_nobody(on_cpu: bool) -> None:
    job = Job(LAYOUT, CPU if on_cpu else GPU, expert_load=HOT, seed=2, on_cpu=on_cpu)

    verdicts = detect(job, 60)

    (advice,) = verdicts.open()
    assert (advice.kind, advice.cause, advice.ranks) == (Kind.IMBALANCE, Cause.EXPERT, ())
    assert advice.effect_ratio == pytest.approx(1.35, rel=0.1)
    assert verdicts.paged() == []


def test_a_slow_gpu_is_found_under_unequal_experts() -> None:
    job = Job(LAYOUT, GPU, (Fault("compute", (2,), 50, 1.05),), expert_load=HOT, seed=3)

    verdicts = detect(job, 60)

    assert verdicts.paged_ranks() == {2}


def test_equal_experts_are_told_of_nobody() -> None:
    job = Job(LAYOUT, GPU, expert_load=(1.0, 1.0, 1.0, 1.0), seed=4)

    verdicts = detect(job, 60)

    assert [f for _, f in verdicts.said if f.page or f.cause is Cause.EXPERT] == []
