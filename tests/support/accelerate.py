"""Accelerate, for the training environment alone."""

from __future__ import annotations

from pathlib import Path

from tests.support import training_packages

LAUNCH = [
    *["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"],
    *["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"],
]
"""`accelerate launch` as for two GPUs: on CPUs it starts several ranks by MPI alone. The script chooses CPUs itself."""
PACKAGES = ("accelerate==1.15.0", "huggingface_hub", "safetensors", "tqdm", "pyyaml")


def install(folder: Path) -> dict[str, str]:
    """Into the folder. Returns the environment that a script needs for it; skips where it can't be had."""
    return {**training_packages.install(folder, *PACKAGES), "ACCELERATE_USE_CPU": "true"}
