"""The command that `megatronapp attach` runs: its processes find the start hook, and an agent beside them.

The agent is a thread here, under this command's own Python: whatever versions of gRPC, protobuf or pydantic the
training environment pins stay as they are.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from megatronapp.core.errors import UsageError
from megatronapp.trainer.agent.embedded import embedded_agent
from megatronapp.trainer.attach.light import START_FOLDER, linked

NOT_FOUND, NOT_EXECUTABLE = 127, 126


def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """The command to its end, in this environment and with these variables. Returns its exit code, 128 + the signal
    that ended it. Raises UsageError for one that can't be started."""
    os.environ.update(variables)
    with embedded_agent(), linked() as start_folder:
        python_path = with_start_folder(os.environ.get("PYTHONPATH", ""), start_folder)
        return _run(command, {**os.environ, "PYTHONPATH": python_path})


def with_start_folder(python_path: str, start_folder: Path = START_FOLDER) -> str:
    """Python imports the first sitecustomize that it finds; ours goes on with the one behind it."""
    return os.pathsep.join([str(start_folder), *([python_path] if python_path else [])])


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        failure = UsageError(f"{command[0]} can't be started: {error.strerror}")
        failure.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        raise failure from error

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends ^C to the command, too
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
