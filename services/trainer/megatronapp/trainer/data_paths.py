"""Which files training, validation and test read: one blend that --split deals out, or one for each. No torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.core.json_file import load_json_file
from megatronapp.trainer.config import DataConfig

SETS = ("train", "valid", "test")
MAX_BYTES = 16 << 20
_FLAGS = {
    *("--data-path", "--data-args-path", "--per-split-data-args-path", "--mock-data"),
    *(f"--{name}-data-path" for name in SETS),
}
_KINDS = ("--data-path", "--data-args-path", "--{train,valid,test}-data-path", "--per-split-data-args-path")


@dataclass(frozen=True)
class Blend:
    """Prefixes of .bin/.idx files, and weights where they are given."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Share:
    """What a set takes: of each file the entries from `begin` to `end`, as parts of 1. `remedy`: where it has none."""

    blend: Blend | None
    begin: float
    end: float
    remedy: str

    @property
    def is_empty(self) -> bool:
        return self.blend is None or self.begin == self.end


def resolved(data: DataConfig) -> DataConfig:
    """With what the files of flags hold, in place of their names. Raises MegatronAppError."""
    given = (data.data_path, data.data_args_path, any(by_set(data)), data.per_split_data_args_path)
    named = [kind for kind, value in zip(_KINDS, given, strict=True) if value]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} both say what the data is: give one of them")
    if (any(by_set(data)) or data.per_split_data_args_path) and data.split != DataConfig.split:
        raise UsageError(f"--split deals out --data-path, but {named[0]} has data for each set: leave --split out")
    if data.data_args_path:
        return dataclasses.replace(data, data_path=_words(Path(data.data_args_path)), data_args_path=None)
    if data.per_split_data_args_path:
        paths = _lists(Path(data.per_split_data_args_path))
        return dataclasses.replace(
            data,
            train_data_path=paths["train"],
            valid_data_path=paths["valid"],
            test_data_path=paths["test"],
            per_split_data_args_path=None,
        )
    return data


def are_named_by(argv: Sequence[str]) -> bool:
    """Whether these flags say where any data comes from."""
    return not _FLAGS.isdisjoint(word.partition("=")[0] for word in argv)


def by_set(data: DataConfig) -> tuple[tuple[str, ...], ...]:
    return data.train_data_path, data.valid_data_path, data.test_data_path


def shares(data: DataConfig) -> tuple[Share, Share, Share]:
    """Of training, validation and test. Raises UsageError."""
    if any(by_set(data)):
        train, valid, test = (
            Share(parse_blend(paths, flag) if paths else None, 0.0, float(bool(paths)), f"give {flag}")
            for paths, flag in zip(by_set(data), (f"--{name}-data-path" for name in SETS), strict=True)
        )
        return train, valid, test
    blend, split = parse_blend(data.data_path, "--data-path"), parse_split(data.split)
    ends = [sum(split[: part + 1]) / sum(split) for part in range(len(SETS))]
    train, valid, test = (
        Share(blend, begin, end, "give another --split") for begin, end in zip((0.0, *ends), ends, strict=False)
    )
    return train, valid, test


def parse_blend(paths: Sequence[str], flag: str) -> Blend:
    """Prefixes, or a weight before each. Raises UsageError."""
    if not paths:
        raise UsageError("training needs --data-path (made by `megatronapp data preprocess`) or --mock-data")
    weights = [_number(part) for part in paths[::2]]
    if len(paths) % 2 or all(weight is None for weight in weights):
        return Blend(tuple(paths))
    found = [weight for weight in weights if weight is not None]
    if len(found) < len(weights) or min(found) < 0 or not 0 < sum(found) < math.inf:
        raise UsageError(f"{flag} takes prefixes, or a weight before each prefix; weights are not negative")
    return Blend(tuple(paths[1::2]), tuple(found) if len(found) > 1 else None)


def parse_split(split: str) -> tuple[float, float, float]:
    """Parts of training, validation and test. Raises UsageError."""
    parts = [_number(part) for part in split.split(",")]
    numbers = [part for part in parts if part is not None and part >= 0]
    if len(numbers) < len(parts) or len(parts) > len(SETS) or not 0 < sum(numbers) < math.inf:
        raise UsageError(f"--split {split!r}: give one to three parts, such as 969,30,1")
    train, valid, test = numbers + [0.0] * (len(SETS) - len(numbers))
    return train, valid, test


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _words(file: Path) -> tuple[str, ...]:
    """What --data-path would be given. Raises ConfigError and DataError."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--data-args-path {file} can't be read: {error.strerror}") from error
    try:
        words = tuple(content.decode().split())
    except UnicodeDecodeError:
        words = ()
    if not words or len(content) > MAX_BYTES:
        raise DataError(f"--data-args-path {file} is no list of prefixes: write there what --data-path takes")
    return words


def _lists(file: Path) -> Mapping[str, tuple[str, ...]]:
    """By set what its flag would be given. Raises ConfigError and DataError."""
    if not file.is_file():
        raise ConfigError(f"--per-split-data-args-path {file}: there is no such file")
    found = load_json_file(file, MAX_BYTES)
    if not isinstance(found, dict) or not found or not found.keys() <= set(SETS):
        raise DataError(f"--per-split-data-args-path {file} is no JSON object of {', '.join(SETS)}, each a list")
    return {name: _entries(found.get(name), f"{file}: {name}") for name in SETS}


def _entries(value: Any, source: str) -> tuple[str, ...]:
    if value is None:
        return ()
    entries = value.split() if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(each, str | int | float) for each in entries):
        raise DataError(f"{source} is no list of prefixes, or of a weight before each prefix")
    return tuple(str(each) for each in entries)
