"""`megatronapp doctor` where something is broken: it says so, and goes on."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from megatronapp.cli import doctor

UNLOADABLE = 'raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32\' not found")'


def test_a_wheel_that_does_not_load_is_a_line_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_wheel.py").write_text(UNLOADABLE)
    monkeypatch.syspath_prepend(tmp_path)
    broken = EntryPoint("broken", "broken_wheel:checks", doctor.ENTRY_POINT_GROUP)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [broken])

    last = list(doctor.checks())[-1]

    assert (last.name, last.ok) == ("broken_wheel", False)
    assert "GLIBCXX_3.4.32" in last.detail


def test_a_check_that_fails_midway_keeps_what_it_has_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_working.py").write_text(
        "def checks():\n    yield 'a', True, 'b'\n    raise RuntimeError('driver')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("half", "half_working:checks", doctor.ENTRY_POINT_GROUP)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [entry])

    said, failed = list(doctor.checks())[-2:]

    assert (said.name, said.ok) == ("a", True)
    assert failed.detail.endswith("RuntimeError: driver")


def test_every_native_wheel_is_told_of_whether_it_is_there_or_not() -> None:
    names = {check.name for check in doctor.checks()}

    assert {"megatronapp-scan", "megatronapp-rdma", "megatronapp-nccl"} <= names
