"""What the machine has, in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from importlib.metadata import entry_points


def test_doctor_names_every_lane() -> None:
    command = [sys.executable, "-m", "megatronapp.rdma", "doctor", "--no-speed"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert [line.split()[2 if line.startswith(("ok", "-")) else 1] for line in found] == [
        "shm",
        "cuda_ipc",
        "ucx",
        "tcp",
    ]
    assert "CPU tensors on one host" in found[0]


def test_platforms_doctor_finds_it() -> None:
    (entry,) = [entry for entry in entry_points(group="megatronapp.doctor") if entry.name == "rdma"]

    lines = {name: there for name, there, _ in entry.load()()}

    assert lines["lane shm"] is True
    assert lines["lane tcp"] is True
