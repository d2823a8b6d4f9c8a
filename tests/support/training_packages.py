"""Packages for the training environment alone: the product does not know them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def install(folder: Path, *packages: str) -> dict[str, str]:
    """Into the folder, without what they need. Returns the environment that finds them, or skips the test."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{packages[0]} can't be installed: {done.stderr.strip()[-200:]}")
    return {"PYTHONPATH": str(folder)}
