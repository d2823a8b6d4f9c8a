"""Which recorder a rank gets, and what is said when it is not the native one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from megatronapp.trainer.plugins.scan import recorders
from megatronapp.trainer.plugins.scan.python_recorder import PythonRecorder

CPU = torch.device("cpu")
UNLOADABLE = 'raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32\' not found")'


@pytest.fixture
def unloadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that was built for another machine."""
    (tmp_path / "wheel_of_another_machine.py").write_text(UNLOADABLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(recorders, "WHEEL", "wheel_of_another_machine")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "WHEEL", "no_such_wheel")


def made(*, first_of_node: bool) -> list[Any]:
    """What is said while a recorder is made, which must be Python's."""
    with capture_logs() as said:
        recorder = recorders.make_recorder(CPU, first_of_node=first_of_node)
    assert isinstance(recorder, PythonRecorder)
    return said


@pytest.mark.usefixtures("unloadable")
def test_a_wheel_that_does_not_load_leaves_training_the_recorder_in_python_and_says_why() -> None:
    (said,) = made(first_of_node=True)

    assert said["event"] == "slower_recorder"
    assert "GLIBCXX_3.4.32" in said["reason"]


@pytest.mark.usefixtures("missing")
def test_a_missing_wheel_is_told_on_a_cpu_too() -> None:
    (said,) = made(first_of_node=True)

    assert "pip install ./native/scan" in said["reason"]


@pytest.mark.usefixtures("missing")
def test_what_a_node_lacks_is_told_by_its_first_rank_alone() -> None:
    assert made(first_of_node=False) == []
