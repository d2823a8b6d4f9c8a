"""Megatron's .bin and .idx: tokens one after the other, and where each document begins.

The index: magic, version 1 (u64), code of the tokens' number format (u8), number of sequences and of document borders
(u64 each); then the lengths of the sequences in tokens (i32), their places in the .bin in bytes (i64), and the borders
of the documents (i64). All little-endian. A document is one sequence, or one for each of its sentences.

megatron-core has a writer too, but comes with torch: seconds of start for a tool that needs nothing of it.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import ConfigError, DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
UINT16, INT32 = 8, 4
_CUT = "do not belong together or are cut short: preprocess again"
_LENGTH, _PLACE = np.dtype("<i4"), np.dtype("<i8")
UINT16_VOCABULARY = 65_500
"""Larger vocabularies are written as int32; Megatron-core draws the line here."""


class DocumentWriter:
    """Writes one .bin and .idx. They take their names at `commit`; what is left without it is removed."""

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        self._code = UINT16 if vocab_size < UINT16_VOCABULARY else INT32
        self._dtype = np.dtype(DTYPES[self._code])
        self._lengths = array("i")
        self._borders = array("q", [0])
        self._final = tuple(prefix.with_name(f"{prefix.name}.{suffix}") for suffix in ("bin", "idx"))
        self._temporary = tuple(path.with_name(f".{path.name}.{os.getpid()}.partial") for path in self._final)
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary[0].open("wb")
        except OSError as error:
            raise ConfigError(f"--output-prefix {prefix}: {error.strerror}") from error

    @property
    def documents(self) -> int:
        return len(self._borders) - 1

    def add(self, *sequences: npt.NDArray[Any]) -> None:
        """Append a document; each sequence: [length], ids below the vocabulary's size."""
        for tokens in sequences:
            self._file.write(tokens.astype(self._dtype).tobytes())
            self._lengths.append(len(tokens))
        self._borders.append(len(self._lengths))

    def commit(self) -> None:
        self._file.close()
        self._temporary[1].write_bytes(self._index())
        binary, index = self._final
        # The index goes first and comes back last: a pair that can be opened always belongs together.
        index.unlink(missing_ok=True)
        self._temporary[0].replace(binary)
        self._temporary[1].replace(index)

    def _index(self) -> bytes:
        lengths = np.array(self._lengths, dtype="<i4")
        ends = np.cumsum(lengths, dtype="<i8") * self._dtype.itemsize
        places = np.concatenate(([0], ends[:-1])).astype("<i8")
        borders = np.array(self._borders, dtype="<i8")
        header = HEADER.pack(MAGIC, VERSION, self._code, len(lengths), len(borders))
        return header + lengths.tobytes() + places.tobytes() + borders.tobytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        for path in self._temporary:
            path.unlink(missing_ok=True)


def sequence_lengths(prefix: str) -> npt.NDArray[np.int32]:
    """Tokens of each sequence of <prefix>.bin. Raises ConfigError for a missing file and DataError for a broken one."""
    return read_index(prefix)[0]


def read_index(prefix: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Tokens of each sequence of <prefix>.bin, and the borders of documents among these. Raises as sequence_lengths."""
    binary, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    for path in (binary, index):
        if not path.is_file():
            raise ConfigError(f"data {prefix}: there is no file {path}")
    with index.open("rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise DataError(f"{index} is no index of `megatronapp data preprocess`")
        _, _, code, sequences, documents = HEADER.unpack(header)
        if code not in DTYPES:
            raise DataError(f"{index} names an unknown number format ({code})")
        places = sequences * _PLACE.itemsize
        needed = HEADER.size + sequences * _LENGTH.itemsize + places + documents * _PLACE.itemsize
        if index.stat().st_size < needed:  # before memory is taken for it
            raise DataError(f"{binary} and {index} {_CUT}")
        lengths = np.fromfile(file, dtype=_LENGTH, count=sequences)
        file.seek(places, os.SEEK_CUR)
        borders = np.fromfile(file, dtype=_PLACE, count=documents)
    size = int(lengths.sum(dtype=np.int64)) * np.dtype(DTYPES[code]).itemsize
    if not len(borders) or borders[-1] != sequences or binary.stat().st_size != size:
        raise DataError(f"{binary} and {index} {_CUT}")
    return lengths, borders
