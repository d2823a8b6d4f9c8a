"""`megatronapp train --accelerate-config FILE …`: the trainer with the file's settings, or a script's ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.trainer.accelerate.plugin import AccelerateConfig

FLAG = "--accelerate-config"


def taken_out(argv: Sequence[str]) -> tuple[Path, list[str]]:
    """The file, and what else was given. Raises UsageError."""
    place = next(index for index, word in enumerate(argv) if word.partition("=")[0] == FLAG)
    _, given, file = argv[place].partition("=")
    rest = [*argv[:place], *argv[place + (1 if given else 2) :]]
    if not given and place + 1 < len(argv):
        file = argv[place + 1]
    if not file or file.startswith("--"):
        raise UsageError(f"{FLAG} takes the YAML file that `accelerate config` wrote")
    return Path(file), rest


def with_batch(config: AccelerateConfig, flags: Sequence[str]) -> list[str]:
    """The file's settings, then the flags given beside it, which win; the global batch follows from the microbatches.
    Raises UsageError."""
    whole = [*config.flags(), *flags]
    if "--global-batch-size" in flags or not config.settings.get("num_micro_batches"):
        return whole
    micro = _number(whole, "--micro-batch-size")
    split = _number(whole, "--tensor-model-parallel-size") * _number(whole, "--pipeline-model-parallel-size")
    split *= _number(whole, "--context-parallel-size")
    ranks = int(os.environ.get("WORLD_SIZE", config.processes))
    batch = micro * int(config.settings["num_micro_batches"]) * max(ranks // split, 1)
    return [*whole, "--global-batch-size", str(batch)]


def _number(flags: Sequence[str], name: str) -> int:
    """The last value given, 1 without one."""
    text = "1"
    for word, following in zip(flags, [*flags[1:], ""], strict=True):
        flag, given, value = word.partition("=")
        if flag == name:
            text = value if given else following
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{name} {text!r:.80} is no whole number from 1 up")
    return int(text)


def on_ranks(config: AccelerateConfig, argv: Sequence[str]) -> int:
    """torchrun on this machine, of a script with its arguments, or of the trainer with `argv`."""
    from megatronapp.trainer.jobs.torchrun import torchrun

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or torchrun says at length that it sets it
    launch = ["--standalone", "--nnodes=1", f"--nproc-per-node={config.processes}", "--max-restarts=0"]
    if is_script(argv):
        os.environ.update(config.variables())
        return torchrun([*launch, *argv])
    return torchrun([*launch, "-m", "megatronapp.trainer", *argv])


def is_script(argv: Sequence[str]) -> bool:
    return bool(argv) and argv[0].endswith(".py")
