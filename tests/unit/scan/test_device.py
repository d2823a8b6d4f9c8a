"""What the native recorder does around the CUDA driver, with a stand-in for it. GPUs are tested in tests/gpu."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.scan.conftest import COMMON

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")


def test_device_spans_and_completions_are_told_when_the_device_has_passed_them(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    driver = tmp_path / "libcuda.so.1"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["c++", *flags, "-o", str(driver), str(COMMON / "tests/stand_in/cuda.cpp")], check=True)

    rank = [sys.executable, str(Path(__file__).with_name("device_rank.py")), str(driver)]
    done = subprocess.run(rank, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "each stream at its own pace",
        "events are used again, and read back cheaply",
        "the resolver never enters the interpreter",
        "the oldest mark is told that a device does not pass, while nothing is recorded",
        "a close waits for no device",
        "a device that fails costs its rows",
    ]
