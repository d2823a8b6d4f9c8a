"""`make demo` is the command that the end-to-end tests run."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_it_runs_the_demo_without_flags() -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert printed.splitlines()[-1] == ".venv/bin/megatronapp demo"
