"""Captured values by name, and as a file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.scope.captures import Floats

TOKENS = "tokens"
_BROKEN = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, RuntimeError)
_TOO_LARGE = (MemoryError, OverflowError)


class Cache(dict[str, Floats]):
    """Float32 arrays by TransformerLens' names: [batch, pos, …]; `tokens` are the ids, [batch][pos]."""

    def __init__(self, values: dict[str, Floats], tokens: list[list[int]]) -> None:
        super().__init__(values)
        self.tokens = tokens

    def save(self, path: str | Path) -> None:
        """As NPZ, which `numpy.load` reads: an array a name, and `tokens` [batch, pos], filled up with −1."""
        longest = max(map(len, self.tokens), default=0)
        ids = np.array([[*row, *[-1] * (longest - len(row))] for row in self.tokens], np.int64)
        np.savez(path, **{TOKENS: ids}, **self)  # type: ignore[arg-type]


def load_npz(path: str | Path) -> Cache:
    """What `Cache.save` wrote. Raises DataError for another file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            values = {name: _array(file[name]) for name in file.files}
            tokens = [[int(token) for token in row if token >= 0] for row in values.pop(TOKENS)]
    except (*_BROKEN, *_TOO_LARGE) as error:
        raise DataError(f"{path} is no NPZ of a cache: {error}") from error
    return Cache(values, tokens)


def _array(value: object) -> Floats:
    """What of an archive is no array is read as bytes."""
    if not isinstance(value, np.ndarray):
        raise TypeError("it holds more than arrays")
    return value
