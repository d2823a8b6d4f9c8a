"""The trainer's entry point, for torchrun, for a single process and for `megatronapp train`."""

from __future__ import annotations

import logging as stdlib_logging
import os
import sys
import time
from collections.abc import Sequence

from megatronapp.core import library_warnings, logging
from megatronapp.core.errors import MegatronAppError, UsageError
from megatronapp.trainer import arguments, rank_exit
from megatronapp.trainer.accelerate import command as accelerate
from megatronapp.trainer.accelerate.plugin import AccelerateConfig
from megatronapp.trainer.plugins.base import installed

# Here, not in main(): a checkpoint's helper process imports this module alone.
library_warnings.silence()

FIRST_RANK_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the flags say, or serve with --serve.

    Returns the exit code: 0 also after SIGTERM, 2 on wrong flags, 69 when a plug-in is missing, 1 on other errors.
    """
    logging.configure()
    # megatron-core tells at every import that Transformer Engine and Apex are not installed.
    stdlib_logging.getLogger("megatron").setLevel(stdlib_logging.ERROR)
    given = sys.argv[1:] if argv is None else argv
    try:
        if "--serve" in given:
            from megatronapp.trainer.generate import serve

            serve.run(given)
            return 0
        if any(word.partition("=")[0] == accelerate.FLAG for word in given):
            file, given = accelerate.taken_out(given)
            config = AccelerateConfig.read(file)
            if not accelerate.is_script(given):
                given = accelerate.with_batch(config, given)
            if "RANK" not in os.environ and (config.processes > 1 or accelerate.is_script(given)):
                return accelerate.on_ranks(config, given)
        arguments.check_known(given, installed())
        arguments.check_required(given)
        # Only here: a checkpoint's helper process imports this module again, and torch takes seconds.
        from megatronapp.trainer.launch import run

        run(given)
    except MegatronAppError as error:
        rank_exit.leave_reason(f"error: {error}")
        if isinstance(error, UsageError) and os.environ.get("RANK", "0") != "0":
            # Wrong flags are wrong on every rank: the first one says so, and torchrun then ends the others. A rank that
            # ended before it would have torchrun end it unheard.
            time.sleep(FIRST_RANK_SECONDS)
        sys.stderr.write(f"error: {error}\n")  # in one write: ranks share a pipe
        return error.exit_code
    return 0
