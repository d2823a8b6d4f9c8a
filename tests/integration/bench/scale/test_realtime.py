"""A simulated job through a real collector, Redis and detector."""

import pytest

from bench.scale import realtime


@pytest.mark.long
def test_a_slow_gpu_is_paged_through_the_whole_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "SETTLE_SECONDS", 2.0)

    measured = realtime.measure(8, 0.2, seed=1)

    assert measured.found
    assert (measured.false_pages, measured.wrong_culprits) == (0, 0)
    assert measured.processor_seconds.keys() == {"redis", "collector", "detector"}
    assert "paged in slow step" in realtime.line(measured)
