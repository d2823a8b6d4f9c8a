"""Somebody's own script, run as a user runs it: by torchrun, and by `megatronapp attach`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "integration" / "trainer" / "attach" / "scripts"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
ATTACH = [sys.executable, "-m", "megatronapp.cli.main", "attach"]
OURS = ("MEGATRONAPP_", "PYTHONPATH")
ABORTED = "terminate called without an active exception"


class AbortedByTorchError(AssertionError):
    """A worker thread of gloo was in the interpreter when it ended (see megatronapp.trainer.rank_exit). Somebody's own
    script ends so, with us or without, once in 20 to 50 times on a busy machine: who sees it tries again."""


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    said: list[str]
    """Our own lines on standard error."""

    def lines(self, *words: str) -> list[str]:
        """Of standard output, those that begin with one of these."""
        return [line for line in self.output.splitlines() if line.startswith(words)]


def start(
    script: Path,
    *arguments: object,
    ranks: int = 2,
    attach: list[str] | None = None,
    environment: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
    launcher: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """`attach`: the command's flags; None: without it. `python`: the training environment's. `launcher`: its flags
    that start the ranks; without any, torchrun's."""
    starter = launcher or [*TORCHRUN, f"--nproc-per-node={ranks}"]
    command = [str(python), *starter, str(script), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.Popen(
        command if attach is None else [*ATTACH, *attach, "--", *command],
        env={**clean, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """What it wrote, until it ends; what takes longer than `timeout` seconds gets SIGTERM."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.communicate(timeout=60)


def run(script: Path, *arguments: object, timeout: float = 240.0, **options: Any) -> Ended:
    """To its end. Options are those of `start`. Raises AbortedByTorchError."""
    with start(script, *arguments, **options) as process:
        output, errors = end(process, timeout)
    if process.returncode and ABORTED in errors:
        raise AbortedByTorchError(output + errors)
    said = [line for line in errors.splitlines() if line.startswith("megatronapp: ")]
    return Ended(process.returncode, output + errors, said)


def every_step(folder: Path) -> list[str]:
    """Flags that trace each step into the folder."""
    return ["--trace", "--trace-dir", str(folder), "--trace-interval", "1", "--continuous-trace-iterations", "1"]
