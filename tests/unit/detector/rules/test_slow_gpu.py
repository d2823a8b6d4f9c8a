"""The rule for slow devices, on a view that a simulated job left behind."""

from __future__ import annotations

from megatronapp.detector.rules import slow_gpu
from tests.support.detecting import detect
from tests.support.simulated import GPU, Fault, Job, Layout


def test_a_rank_under_an_alarm_that_is_faster_than_usual_by_now_ends_no_verdict() -> None:
    verdicts = detect(Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), 36, 1.2),), seed=3), 45)
    view = verdicts.engine.judge.view
    assert view is not None
    view.monitors["compute_effect"].effect[3] = -0.01

    assert [suspicion.ranks for suspicion in slow_gpu.detect(view)] == [(3,)]
