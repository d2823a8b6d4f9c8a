"""What `megatronapp doctor` says of NCCL."""

from __future__ import annotations

import pytest

pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")

from megatronapp.nccl import LIBRARY, doctor


@pytest.mark.parametrize(
    ("version", "ok", "said"),
    [
        (None, None, "built without it"),
        ((2, 21, 5), None, "2.28"),
        ((2, 28, 9), True, "2.28.9: calls, times"),
        ((2, 31, 2), None, "calls only"),
    ],
)
def test_it_says_what_this_nccl_can_be_asked_for(monkeypatch, version, ok, said):
    monkeypatch.setattr(doctor, "_nccl_version", lambda: version)
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", str(LIBRARY))

    ((_, found, detail),) = doctor.checks()

    assert found is ok
    assert said in detail


def test_another_plug_in_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_nccl_version", lambda: (2, 28, 9))
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "inspector")

    assert next(doctor.checks())[:2] == ("NCCL_PROFILER_PLUGIN", None)
