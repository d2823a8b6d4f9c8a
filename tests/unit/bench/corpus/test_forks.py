"""The ranks of recorded cases are forks: what counts devices before them must not start CUDA."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from bench.corpus import record

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"


def test_where_ranks_are_forked_devices_are_counted_without_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    by_nvml: list[bool] = []

    def forkserver() -> multiprocessing.context.ForkServerContext:
        by_nvml.append(torch.cuda._nvml_based_avail())
        return multiprocessing.get_context("forkserver")

    monkeypatch.setattr(record, "forkserver", forkserver)
    record.on_gpus(tmp_path, devices=4, within=1)

    assert by_nvml
    assert all(by_nvml)
