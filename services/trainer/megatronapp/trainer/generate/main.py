"""`megatronapp generate`: in this process, or on as many ranks as the layout needs."""

from __future__ import annotations

import argparse
import logging as stdlib_logging
import os
import sys
from collections.abc import Sequence

from megatronapp.core import library_warnings, logging
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.generation import GenerationRequest
from megatronapp.trainer.generate import arguments

library_warnings.silence()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 on wrong flags, 1 on other errors."""
    logging.configure("warning")
    stdlib_logging.getLogger("megatron").setLevel(stdlib_logging.ERROR)
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(given)
    except MegatronAppError as error:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _run(given: list[str]) -> int:
    options = arguments.build_parser().parse_args(given)
    arguments.source_of(options)
    ranks = options.tensor_model_parallel_size * options.pipeline_model_parallel_size
    if ranks > 1 and "RANK" not in os.environ:
        return _on_ranks(options, given, ranks)
    reads = os.environ.get("RANK", "0") == "0"
    _generate(options, arguments.request_of(options, arguments.prompts_of(options)) if reads else None)
    return 0


def _on_ranks(options: argparse.Namespace, given: list[str], ranks: int) -> int:
    """torchrun on this machine; its first rank reads the prompts and writes the text."""
    arguments.request_of(options, options.prompt or ["of a file"])  # what is wrong is said before ranks start
    from megatronapp.trainer.jobs.torchrun import torchrun

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or torchrun says at length that it sets it
    launch = ["--standalone", "--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    return torchrun([*launch, "-m", "megatronapp.trainer.generate", *given])


def _generate(options: argparse.Namespace, request: GenerationRequest | None) -> None:
    """`request` is known to the first rank alone."""
    from megatronapp.core.generation_json import command_from_json, to_json
    from megatronapp.trainer.generate.loaded import loaded
    from megatronapp.trainer.generate.output import PlainText

    with loaded(arguments.source_of(options)) as generator:
        asked = command_from_json(generator.ranks.from_first(to_json(request) if request else ""))
        if not isinstance(asked, GenerationRequest):
            raise TypeError(type(asked))
        plain = PlainText(asked.prompts, _write) if not options.json and generator.ranks.is_first else None
        for event in generator.generate(asked):
            if plain is not None:
                plain.show(event)
            elif generator.ranks.is_first:
                _write(f"{to_json(event)}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
