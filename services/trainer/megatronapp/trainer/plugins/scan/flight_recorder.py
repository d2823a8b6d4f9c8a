"""PyTorch's flight recorder can be asked by a pipe, also where the interpreter stands still: ProcessGroupNCCL listens
where the environment says so when the first group is made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from megatronapp.core.errors import UnavailableError
from megatronapp.trainer.agent.rendezvous import user_folder

PIPE, DUMP, OLDER_DUMP = (
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)
"""Each begins a path that ends with the rank. The recorder keeps 2000 operations, unless told otherwise."""
_NAME = "recorder-{pid}-"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What is to be set before the first process group; what the user has set stays."""
    try:
        stem = str(user_folder() / _NAME.format(pid=os.getpid()))
    except UnavailableError:
        return {}
    wanted = {} if DUMP in environ or OLDER_DUMP in environ else {DUMP: f"{stem}dump-"}
    return wanted if PIPE in environ else {PIPE: stem, **wanted}


def document(environ: Mapping[str, str], rank: int) -> dict[str, str] | None:
    """For the hello; None where nobody has said where the recorder listens and writes."""
    pipe, dump = environ.get(PIPE), environ.get(DUMP) or environ.get(OLDER_DUMP)
    if not pipe or not dump:
        return None
    return {"pipe": f"{Path(pipe).absolute()}{rank}.pipe", "dump": f"{Path(dump).absolute()}{rank}"}


def remove() -> None:
    """What this process has put into the folder of its user."""
    with contextlib.suppress(OSError, UnavailableError):
        for path in user_folder().glob(_NAME.format(pid=os.getpid()) + "*"):
            path.unlink()
