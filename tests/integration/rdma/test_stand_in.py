"""What the lanes do around the CUDA driver and around UCX, with stand-ins for them. GPUs are tested in tests/gpu."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

ROOT = Path(__file__).parents[3]


def library(name: str, source: str, folder: Path) -> Path:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{name}"]
    subprocess.run(["c++", *flags, "-o", str(folder / name), str(ROOT / source)], check=True)
    return folder / name


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library("libcuda.so.1", "native/common/tests/stand_in/cuda.cpp", tmp_path_factory.mktemp("driver"))


def run(program: str, stand_in: Path) -> list[str]:
    ranks = [sys.executable, str(Path(__file__).with_name(program)), str(stand_in)]
    done = subprocess.run(ranks, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_gpu_memory_arrives_in_any_order_and_no_late_copy_changes_anything_else(driver: Path) -> None:
    assert run("stand_in_ranks.py", driver) == [
        "staged: all bytes were right",
        "cuda_ipc: all bytes were right",
        "late copies changed nothing",
    ]


@pytest.mark.long
def test_streams_hosts_and_schedulers_get_what_they_ask_for(driver: Path) -> None:
    """No host waits in wait_stream, host and GPU are a pair, captured streams are refused, limits are kept."""
    assert run("stand_in_scheduling.py", driver) == [
        "staged: as a scheduler asks",
        "cuda_ipc: as a scheduler asks",
        "no more receives than there are flags",
    ]


def test_endpoints_of_ucx_are_closed_when_their_peer_is_lost_or_the_engine_ends(tmp_path: Path) -> None:
    ucx = library("libucp.so.0", "native/rdma/tests/stand_in/ucx.cpp", tmp_path)

    assert run("stand_in_ucx.py", ucx) == ["every endpoint is closed once, and its late error harms nothing"]
