"""The compiled simulation and Python's come to the same, operation by operation."""

from __future__ import annotations

import pytest

from megatronapp.cli.pipeline.compiled import CALLED, SOURCES, compiled_engine
from megatronapp.core.pipeline.simulator import events
from tests.support.random_pipelines import random_case

pytest.importorskip("numba")


def test_both_come_to_the_same() -> None:
    engine = compiled_engine()
    assert engine is not None

    for seed in range(200):
        case = random_case(seed)
        for schedule in (case.dynamic(), case.replayed()):
            here, there = case.run(schedule), case.run(schedule, engine)
            assert (here.begins == there.begins).all(), seed
            assert (here.peaks, here.end_ns) == (there.peaks, there.end_ns), seed


def test_all_that_is_compiled_decides_whether_it_is_compiled_again() -> None:
    assert {function.__module__ for function in (*CALLED, events.simulate)} == {module.__name__ for module in SOURCES}
