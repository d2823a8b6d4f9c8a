"""`megatronapp convert`."""

from __future__ import annotations

import logging as stdlib_logging
import sys
from collections.abc import Sequence

from megatronapp.core import library_warnings, logging
from megatronapp.core.errors import MegatronAppError
from megatronapp.trainer.convert import arguments
from megatronapp.trainer.convert.arguments import Options

library_warnings.silence()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 on wrong flags, 1 on other errors."""
    logging.configure("warning")
    stdlib_logging.getLogger("megatron").setLevel(stdlib_logging.ERROR)
    try:
        _run(sys.argv[1:] if argv is None else list(argv))
    except MegatronAppError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _run(argv: list[str]) -> None:
    direction, options = arguments.parse(argv)
    if direction == "hf-to-core":
        _there(options)
    elif direction == "megatron-to-core":
        _from_megatron(options)
    else:
        _back(options)


def _there(options: Options) -> None:
    import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

    # isort: split
    from megatronapp.trainer.convert import hf_to_core, structure

    if options.print_structure:
        structure.show_folder(options.source)
    hf_to_core.convert(options)
    _say_how_to_go_on(options)


def _from_megatron(options: Options) -> None:
    import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

    # isort: split
    from megatronapp.trainer.convert import megatron_to_core

    megatron_to_core.convert(options)
    _say_how_to_go_on(options)


def _say_how_to_go_on(options: Options) -> None:
    print(f"{options.target} holds the weights of {options.source}, without optimizer state: a run starts one anew")
    print(f"megatronapp train --load {options.target} --use-checkpoint-args --finetune …")


def _back(options: Options) -> None:
    import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

    # isort: split
    from megatronapp.trainer.convert import core_to_hf, structure

    if options.print_structure:
        structure.show_checkpoint(options.source)
    core_to_hf.convert(options)
    print(f"{options.target} holds the weights of {options.source}; the optimizer's state stays behind")
