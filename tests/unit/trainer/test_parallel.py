"""Which device a rank takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from megatronapp.core.errors import UsageError
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


def test_more_ranks_than_the_host_has_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    with pytest.raises(UsageError, match="local rank 2 has no GPU: the host shows 2; start no more ranks per host"):
        parallel._device(Environment(local_rank=2))
