"""The allocator is asked once a second, however short the steps are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from megatronapp.trainer.plugins.scan.memory import READ_EVERY_NS, MemoryGauge

STATISTICS = {"allocated_bytes": {"all": {"current": 3, "peak": 5}}, "reserved_bytes": {"all": {"current": 8}}}


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """An allocator without a GPU; how often its peak began anew."""
    resets: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=13))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: STATISTICS)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    return resets


def test_the_allocator_is_asked_once_a_second(resets: list[torch.device]) -> None:
    gauge = MemoryGauge(torch.device("cuda", 0))

    readings = [gauge.poll(time_ns) for time_ns in (7, READ_EVERY_NS // 2, READ_EVERY_NS + 7)]

    assert readings == [(3, 8, 5, 13), None, (3, 8, 5, 13)]
    assert len(resets) == 2


def test_who_asks_for_an_older_reading_waits_longer(resets: list[torch.device]) -> None:
    gauge = MemoryGauge(torch.device("cuda", 0))
    gauge.poll(0)

    readings = [gauge.poll(time_ns, 2 * READ_EVERY_NS) for time_ns in (READ_EVERY_NS, 2 * READ_EVERY_NS)]

    assert readings == [None, (3, 8, 5, 13)]
