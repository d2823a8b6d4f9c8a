"""torchrun that ends with the exit code of the rank that failed, and with its starter. It is its ranks' agent, too.

torchrun itself ends with 1 whatever a rank said; `failurePolicy.nonRetriableExitCodes` needs the code. And it tells of
a rank that was ended by a signal only when the others have ended, for which it waits 30 s: one that waits for the dead
rank within NCCL or CUDA does not hear SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable

from megatronapp.core import library_warnings
from megatronapp.core.logging import configure
from megatronapp.trainer.agent.embedded import embedded_agent

ORDINARY = 1
PEERS_SECONDS = 5
"""What the other ranks have to end after one has failed: to find out whom they have lost, and to say so."""


def exit_code(codes: Iterable[int]) -> int:
    """One exit code for the ranks that failed, the first failure first; signals are 128 + number.

    A code that a rank chose says more than the 1, or the signal, with which its peers die of it.
    """
    shown = [code if code >= 0 else 128 - code for code in codes]
    return next((code for code in shown if ORDINARY < code < 128), shown[0])


def _end_with_starter() -> None:
    """The starter holds the other end of standard input; the end of file is its death."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def launch(argv: list[str]) -> int:
    """torchrun with `argv`, to its end, and an agent beside it. Returns the exit code."""
    configure()
    library_warnings.silence()
    with embedded_agent():
        return torchrun(argv)


def torchrun(argv: list[str]) -> int:
    """torchrun with `argv`, to its end. Returns the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    # It tells of every rank that it ends, and of the first failure where in torch's own files it saw it.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    _end_peers_soon()
    try:
        main(argv)
    except ChildFailedError as error:
        first, _ = error.get_first_failure()
        ranks = sorted(error.failures, key=lambda rank: rank != first)
        return exit_code(error.failures[rank].exitcode for rank in ranks)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _end_peers_soon() -> None:
    """When a rank has failed: say at once which signal it was, and give the others PEERS_SECONDS."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    stock = SubprocessContext.close
    known = set[SubprocessContext]()

    def close(context: SubprocessContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        codes = {local: handler.proc.poll() for local, handler in context.subprocess_handlers.items()}
        failed = {context.envs[local]["RANK"]: code for local, code in codes.items() if code}
        if failed and context not in known:
            known.add(context)
            for rank, code in failed.items():
                if code < 0:  # who ends by itself has said why
                    sys.stderr.write(f"error: rank {rank} was ended by {signal.Signals(-code).name}\n")
            sys.stderr.flush()
        stock(context, death_sig, PEERS_SECONDS if failed else timeout)

    SubprocessContext.close = close  # type: ignore[method-assign, assignment]


def run(argv: list[str]) -> int:
    threading.Thread(target=_end_with_starter, daemon=True).start()
    return launch(argv)


if __name__ == "__main__":
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The reading thread can't be woken, and the interpreter would wait for its lock on standard input.
    os._exit(code)
