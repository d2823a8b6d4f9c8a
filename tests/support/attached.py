"""Somebody's own script, run as a user runs it: by torchrun, and by `megatronapp attach`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "integration" / "trainer" / "attach" / "scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ATTACH = [sys.executable, "-m", "megatronapp.cli.main", "attach"]
OURS = ("MEGATRONAPP_", "PYTHONPATH")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    said: list[str]
    """Our own lines on standard error."""

    def lines(self, *words: str) -> list[str]:
        """Of standard output, those that begin with one of these."""
        return [line for line in self.output.splitlines() if line.startswith(words)]


def run(
    script: Path,
    *arguments: object,
    ranks: int = 2,
    attach: list[str] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 240.0,
) -> Ended:
    """`attach`: the command's flags; None: without it."""
    command = [*TORCHRUN, f"--nproc-per-node={ranks}", str(script), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = subprocess.run(
        command if attach is None else [*ATTACH, *attach, "--", *command],
        env={**clean, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("megatronapp: ")]
    return Ended(done.returncode, done.stdout + done.stderr, said)


def every_step(folder: Path) -> list[str]:
    """Flags that trace each step into the folder."""
    return ["--trace", "--trace-dir", str(folder), "--trace-interval", "1", "--continuous-trace-iterations", "1"]
