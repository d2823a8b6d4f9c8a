"""One rank of a case, in a process forked from one that has imported everything."""

from __future__ import annotations

import os
import sys

from tests.support.parents import end_with_parent


def main(argv: list[str], environment: dict[str, str], log: str, processors: frozenset[int] = frozenset()) -> None:
    """Train as the flags say, on these processors where some are given; output goes to `log`."""
    end_with_parent()
    if processors:
        os.sched_setaffinity(0, processors)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    import torch

    from megatronapp.trainer.main import main as train

    torch.set_num_threads(1)
    sys.exit(train(argv))
