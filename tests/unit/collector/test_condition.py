"""When the collector says that it takes messages."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from megatronapp.collector.condition import STALLED_SECONDS, Condition
from megatronapp.collector.metrics import CollectorMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def kept(registry: CollectorRegistry) -> Condition:
    return Condition(CollectorMetrics(registry))


def writable(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("megatronapp_trace_disk_writable")


def test_a_refused_write_is_told_once_and_its_end_too(kept: Condition, registry: CollectorRegistry) -> None:
    with capture_logs() as logs:
        for ok in (False, False, True, True):
            kept.journal(ok=ok)
        for error in ("full", "full", ""):
            kept.store(error)

    assert [line["event"] for line in logs] == [
        "journal_not_writable",
        "journal_writable",
        "store_not_writable",
        "store_writable",
    ]
    assert kept.good
    assert writable(registry) == 1


def test_one_of_both_is_enough_to_be_unwell(kept: Condition, registry: CollectorRegistry) -> None:
    kept.store("full")
    kept.journal(ok=True)

    assert not kept.good
    assert writable(registry) == 0


def test_a_loop_that_does_not_come_round_or_a_write_that_does_not_end_is_unwell(
    kept: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: start + 2 * STALLED_SECONDS)
    assert not kept.good
    kept.tick()
    assert kept.good

    with kept.writing():
        monkeypatch.setattr(time, "monotonic", lambda: start + 4 * STALLED_SECONDS)
        kept.tick()
        assert not kept.good
    assert kept.good
