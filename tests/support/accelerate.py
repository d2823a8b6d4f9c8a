"""Accelerate, for the training environment alone: the product does not know it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = [
    *["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"],
    *["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"],
]
"""`accelerate launch` as for two GPUs: on CPUs it starts several ranks by MPI alone. The script chooses CPUs itself."""
PACKAGES = ("accelerate==1.15.0", "huggingface_hub", "safetensors", "tqdm", "pyyaml")


def install(folder: Path) -> dict[str, str]:
    """Into the folder. Returns the environment that a script needs for it; skips where it can't be had."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Accelerate can't be installed: {done.stderr.strip()[-200:]}")
    return {"PYTHONPATH": str(folder), "ACCELERATE_USE_CPU": "true"}
