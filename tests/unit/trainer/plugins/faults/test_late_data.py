"""Data that comes late, and data that does not."""

from __future__ import annotations

import time

import pytest

from megatronapp.trainer.plugins.faults.waits import LateData


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def test_the_first_microbatch_of_a_step_is_late_and_no_other(slept: list[float]) -> None:
    late = LateData()
    data = late.wrap(iter([{}, {}, {}]))
    late.seconds = 0.5

    read = list(data)

    assert (len(read), slept) == (3, [0.5])


def test_a_rank_whose_data_is_not_late_keeps_its_processor(slept: list[float]) -> None:
    assert len(list(LateData().wrap(iter([{}, {}])))) == 2
    assert slept == []
