"""What is told of a stage of MegaDPP that chooses: what it holds, and what is under way from it, beside the caps."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from megatronapp.trainer.pipeline.dynamic_step import Step
from megatronapp.trainer.plugins.scan.hooks.microbatches import MicrobatchHooks
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase, PythonRecorder
from tests.unit.trainer.plugins.scan.recorded import resolved

NOTHING: Any = SimpleNamespace()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonRecorder]:
    """Of hooks around choices that choose nothing."""
    monkeypatch.setattr(Step, "decide", lambda step: None)
    recorder = PythonRecorder(CpuTimebase())
    hooks = MicrobatchHooks(Probe(recorder, NOTHING, NOTHING, on=True))
    hooks.install()
    yield recorder
    hooks.remove()
    recorder.close(1.0)


def choosing(in_flight: tuple[int, int]) -> Any:
    transport = SimpleNamespace(in_flight=lambda: in_flight)
    policy = SimpleNamespace(in_flight=2.0, cap=3, strict=False)
    return SimpleNamespace(policy=policy, messages=SimpleNamespace(transport=transport))


@pytest.mark.parametrize(
    ("in_flight", "told"),
    [
        ((4096, 8192), [(Operation.DECIDE, 2, 3), (Operation.IN_FLIGHT, 4096, 8192)]),
        ((0, 0), [(Operation.DECIDE, 2, 3)]),  # where bytes under way are not limited
    ],
)
def test_a_choice_tells_what_is_held_and_what_is_under_way_beside_their_caps(
    recorder: PythonRecorder, in_flight: tuple[int, int], told: list[tuple[Operation, int, int]]
) -> None:
    Step.decide(choosing(in_flight))

    columns = resolved(recorder).columns
    rows = zip(*(columns[name].tolist() for name in ("name", "tokens", "length_squares")), strict=True)
    assert list(rows) == told
