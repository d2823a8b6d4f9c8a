"""The fault corpus: recordings of jobs of which it is known what was wrong with them, and what each rule makes of them.

    case        the format, and how cases are read and written
    simulated   slow ranks and clean jobs, out of the proving ground's simulated steps
    standing    jobs that come to a stand, as their heartbeats tell
    record      real ranks on this host's processors or GPUs (gpus), with the fault injector or from outside
    published   real jobs that others recorded, and wrote down what was wrong with them
    ours        a recording replayed through the detector's engine
    others      MegaScan's, Megatrace's and NVRx's rules, rebuilt from their descriptions
    score       verdicts against truth; cli: what is printed

docs/corpus.md explains the format and the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    from bench.corpus import cli

    return cli.main(argv)


__all__ = ["main"]
