"""A folder of safetensors files, of one or of many shards: read a tensor at a time, and written a tensor at a time.

Format: https://github.com/huggingface/safetensors, README "Format". The library writes whole files from memory; here a
file's header, which shapes and dtypes decide, goes first and the tensors follow as they come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from megatronapp.core.durable_file import replace_file, sync
from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.core.json_file import load_json_file

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """`name`: in its file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


# ---- reading


class TensorFolder:
    """The tensors of a folder by name. Raises NotFoundError where there are none, DataError for broken files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: Mapping[str, Stored] = {name: each for file in self._files() for name, each in listed(file)}

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        return read(self.tensors[name], rows)

    def begin_with(self, prefix: str) -> None:
        """Put it before all names, where none begins with it: files of a model without its head leave it away."""
        if not any(name.startswith(prefix) for name in self.tensors):
            self.tensors = {prefix + name: stored for name, stored in self.tensors.items()}

    def _files(self) -> list[Path]:
        index = self.folder / INDEX
        if not index.is_file():
            if (self.folder / SINGLE).is_file():
                return [self.folder / SINGLE]
            pickled = sorted(self.folder.glob("pytorch_model*.bin"))
            hint = "; pytorch_model.bin is not read: save the model as safetensors" if pickled else ""
            raise NotFoundError(f"{self.folder} holds neither {SINGLE} nor {INDEX}{hint}")
        names = _shards(index)
        for name in names:
            if not (self.folder / name).is_file():
                raise NotFoundError(f"{self.folder / name} is missing, which {INDEX} names: fetch the model anew")
        return [self.folder / name for name in names]


def _shards(index: Path) -> list[str]:
    content = load_json_file(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise DataError(f"{index} has no weight_map")
    names = sorted({str(place) for place in places.values()})
    for name in names:
        if Path(name).name != name:
            raise DataError(f"{index} names the file {name!r:.80}, which does not lie in this folder")
    return names


def read(stored: Stored, rows: slice | None = None) -> torch.Tensor:
    """All of it, or some rows, in memory of its own: the file is not kept mapped. Raises DataError."""
    file = stored.file
    try:
        with safe_open(str(file), framework="pt") as opened:
            part = opened.get_tensor(stored.name) if rows is None else opened.get_slice(stored.name)[rows]
            tensor: torch.Tensor = part.clone()
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file} can't be read: {error}") from error
    return tensor


def listed(file: Path) -> Iterator[tuple[str, Stored]]:
    """Its tensors by name, of which the header tells. Raises DataError."""
    try:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                part = opened.get_slice(name)
                dtype = DTYPES.get(part.get_dtype())
                if dtype is None:
                    raise DataError(f"{file}: {name} is of type {part.get_dtype()}; read are {', '.join(DTYPES)}")
                yield name, Stored(file, name, tuple(part.get_shape()), dtype)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file} is torn or no safetensors file: {' '.join(str(error).split())}") from error


# ---- writing


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write(folder: Path, planned: Sequence[Planned], tensors: Iterable[torch.Tensor], max_shard_bytes: int) -> None:
    """Files of at most `max_shard_bytes`, but for a larger tensor, which has one of its own. `tensors` come in
    the order of `planned`, each written before the next is asked for."""
    shards = _cut(planned, max_shard_bytes)
    names = _file_names(len(shards))
    coming = iter(tensors)
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, coming)
    if len(shards) > 1:
        places = {each.name: name for name, shard in zip(names, shards, strict=True) for each in shard}
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(each.size for each in planned)},
            "weight_map": places,
        }
        replace_file(folder / INDEX, json.dumps(index, indent=2).encode())


def _cut(planned: Sequence[Planned], most: int) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    size = 0
    for each in planned:
        if shards[-1] and size + each.size > most:
            shards.append([])
            size = 0
        shards[-1].append(each)
        size += each.size
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _write_file(file: Path, shard: Sequence[Planned], tensors: Iterator[torch.Tensor]) -> None:
    with file.open("wb") as stream:
        stream.write(header(shard))
        for each in shard:
            tensor = next(tensors)
            if tuple(tensor.shape) != each.shape or tensor.dtype != each.dtype:
                raise AssertionError(f"{each.name}: {tuple(tensor.shape)}, {tensor.dtype}")
            stream.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    sync(file)


def header(shard: Sequence[Planned]) -> bytes:
    """A length of 8 bytes, little-endian, and JSON, with blanks up to a multiple of 8."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for each in shard:
        place = [offset, offset + each.size]
        entries[each.name] = {"dtype": _NAMES[each.dtype], "shape": list(each.shape), "data_offsets": place}
        offset += each.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
