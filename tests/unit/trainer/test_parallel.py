"""Which device a rank takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from megatronapp.trainer import parallel
from megatronapp.trainer.environment import Environment


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)


@pytest.mark.parametrize(("rank", "has_gpu", "warned"), [(0, True, ["gpus_unused"]), (0, False, []), (1, True, [])])
def test_a_cpu_build_beside_gpus_is_warned_of_once(
    cpu_build: None, rank: int, has_gpu: bool, warned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nvidia0"
    if has_gpu:
        file.touch()
    monkeypatch.setattr(parallel, "DEVICE_FILE", file)

    with capture_logs() as logged:
        device = parallel._device(Environment(rank=rank))

    assert device.type == "cpu"
    assert [entry["event"] for entry in logged] == warned
