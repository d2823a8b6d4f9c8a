"""What the lanes of GPU memory do around the driver, with a stand-in for it. GPUs are tested in tests/gpu."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "native/common/tests/stand_in/cuda.cpp"


def test_gpu_memory_arrives_in_any_order_and_no_late_copy_changes_anything_else(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    driver = tmp_path / "libcuda.so.1"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["c++", *flags, "-o", str(driver), str(STAND_IN)], check=True)

    ranks = [sys.executable, str(Path(__file__).with_name("stand_in_ranks.py")), str(driver)]
    done = subprocess.run(ranks, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "staged: all bytes were right",
        "cuda_ipc: all bytes were right",
        "late copies changed nothing",
    ]
