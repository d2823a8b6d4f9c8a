"""The trainer's entry point, for torchrun, for a single process and for `megatronapp train`."""

from __future__ import annotations

import logging as stdlib_logging
import os
import sys
import warnings
from collections.abc import Sequence

from megatronapp.core import logging
from megatronapp.core.errors import MegatronAppError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the flags say. Returns the exit code: 0 also after SIGTERM, 2 on wrong flags, 1 on other errors."""
    logging.configure()
    # megatron-core tells at every import that Transformer Engine and Apex are not installed.
    warnings.filterwarnings("ignore", module="megatron")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.checkpoint")
    stdlib_logging.getLogger("megatron").setLevel(stdlib_logging.ERROR)
    try:
        # Only here: a checkpoint's helper process imports this module again, and torch takes seconds.
        from megatronapp.trainer.launch import run

        run(sys.argv[1:] if argv is None else argv)
    except MegatronAppError as error:
        # Wrong flags are wrong on every rank: one says so.
        if not isinstance(error, UsageError) or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
