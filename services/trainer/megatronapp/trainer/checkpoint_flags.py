"""`--use-checkpoint-args`: the model's flags and its tokenizer from the checkpoint that a run goes on from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megatronapp.core.errors import UsageError
from megatronapp.trainer import checkpoint_folder
from megatronapp.trainer.config_fields import EFFECT, Effect, flag_name
from megatronapp.trainer.data.tokenizers import FILE_FLAGS
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.recipe import FIELDS

FLAG = "--use-checkpoint-args"


def completed(argv: Sequence[str], environment: Environment) -> list[str]:
    """`argv` with those of the saved run's flags that change what the model computes and are not given; unchanged
    without --use-checkpoint-args. Raises UsageError, NotFoundError and DataError."""
    if FLAG not in argv:
        return list(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--load", default=None)
    parser.add_argument("--save", default=environment.checkpoint_dir)
    folders, _ = parser.parse_known_args(list(argv))
    folder = _folder(folders.save, folders.load)
    saved = checkpoint_folder.read_recipe(folder).settings
    given = {word.split("=", 1)[0] for word in argv}
    return [*argv, *_flags(saved, given), *_tokenizer_files(folder, given)]


def _folder(save: str, load: str | None) -> Path:
    """Of the checkpoint that the run will load."""
    own = Path(save) if save else None
    if own is not None and checkpoint_folder.find_latest(own) is not None:
        return checkpoint_folder.find_complete(own)
    if load is None:
        raise UsageError(f"{FLAG} needs --load with a checkpoint, or one in --save")
    return checkpoint_folder.find_complete(Path(load))


def _flags(saved: Any, given: set[str]) -> Iterator[str]:
    for name, field in FIELDS.items():
        value = saved.get(name)
        if field.metadata[EFFECT] != Effect.FORWARD or flag_name(field) in given:
            continue
        if value is None or value is False or value in ([], ()):  # not 0, which is a value
            continue
        yield flag_name(field)
        if value is not True:
            yield from (str(each) for each in (value if isinstance(value, list) else [value]))


def _tokenizer_files(folder: Path, given: set[str]) -> Iterator[str]:
    for name, setting in FILE_FLAGS.items():
        path = folder / checkpoint_folder.TOKENIZER / name
        flag = flag_name(FIELDS[setting])
        if path.is_file() and flag not in given:
            yield from (flag, str(path))
