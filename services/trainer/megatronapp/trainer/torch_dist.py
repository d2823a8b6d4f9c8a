"""Weights in megatron-core's distributed format (`torch_dist`) without a model: written and read a tensor at a time.

Tensors of layers are stacked under one key, the layer being the first axis, as megatron-core does by default, and each
layer is a chunk of its own. That format knows no ranks: megatron-core cuts it to any layout when it loads.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint import planner as dcp_planner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from megatronapp.core.errors import DataError

METADATA = ".metadata"
COMMON = "common.pt"
BLOCK_BYTES = 256 << 20
TORN = (
    OSError, RuntimeError, ValueError, EOFError, LookupError, AttributeError, TypeError, AssertionError,
    ArithmeticError, struct.error, pickle.UnpicklingError,
)  # fmt: skip
"""What torch's reader of pickled tensors raises for torn bytes."""
_EXTRA = "_extra_state"
_WITH_EXTRA = ("linear_qkv", "linear_q", "linear_kv", "linear_proj", "linear_fc1", "linear_fc2", "output_layer")
"""Modules of which megatron-core stores an object more, which is empty but with Transformer Engine in fp8."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint, of one layer where it is stacked; `shape` is without the axis of layers."""

    key: str
    layer: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    def depth(self, depths: Mapping[str, int]) -> int:
        """Layers of its stack."""
        return depths[self.key.partition(".")[0]]

    def size(self, depths: Mapping[str, int]) -> torch.Size:
        return torch.Size(self.shape if self.layer is None else (self.depth(depths), *self.shape))

    @property
    def chunk(self) -> ChunkStorageMetadata:
        if self.layer is None:
            return ChunkStorageMetadata(torch.Size([0] * len(self.shape)), torch.Size(self.shape))
        offsets = torch.Size([self.layer, *([0] * len(self.shape))])
        return ChunkStorageMetadata(offsets, torch.Size((1, *self.shape)))


@dataclass(frozen=True)
class Block:
    """What is written at a time: an entry, or some rows of one that is not stacked, as an embedding is large."""

    entry: Entry
    rows: slice | None = None

    @classmethod
    def of(cls, entry: Entry) -> list[Block]:
        per_row = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        height = max(BLOCK_BYTES // per_row, 1)
        if entry.layer is not None or entry.shape[0] <= height:
            return [cls(entry)]
        starts = range(0, entry.shape[0], height)
        return [cls(entry, slice(start, min(start + height, entry.shape[0]))) for start in starts]

    @property
    def chunk(self) -> ChunkStorageMetadata:
        whole = self.entry.chunk
        if self.rows is None:
            return whole
        offsets = (self.rows.start, *whole.offsets[1:])
        sizes = (self.rows.stop - self.rows.start, *whole.sizes[1:])
        return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


# ---- writing


def write(
    folder: Path,
    entries: Sequence[Entry],
    depths: Mapping[str, int],
    tensor_of: Callable[[Block], torch.Tensor],
    common: Mapping[str, Any],
) -> None:
    """`depths`: the layers of each stack, which begins its tensors' keys. `tensor_of` is asked for a block when its
    turn to be written comes. `common`: what all ranks load."""
    blocks = [block for entry in entries for block in Block.of(entry)]
    items = [_tensor_item(block, depths) for block in blocks]
    extras = _extras(entries, depths)
    items += [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in extras]
    writer = FileSystemWriter(folder, thread_count=1, per_thread_copy_ahead=0)
    writer.set_up_storage_writer(is_coordinator=True)
    plan = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(items))])[0]
    by_index = {item.index: block for item, block in zip(items, blocks, strict=False)}
    results = writer.write_data(plan, _Source(by_index, tensor_of)).wait()
    writer.finish(_metadata(blocks, depths, extras), [results])
    torch.save(dict(common), folder / COMMON)
    save_config(CheckpointingConfig("torch_dist", 1), str(folder))


def _extras(entries: Sequence[Entry], depths: Mapping[str, int]) -> list[str]:
    """Keys, each once."""
    found: dict[str, None] = {}
    for entry in entries:
        module = entry.key.rpartition(".")[0]
        if module.rpartition(".")[2] in _WITH_EXTRA:
            place = "0_1" if entry.layer is None else f"{entry.layer}_{entry.depth(depths)}"
            found[f"{module}.{_EXTRA}/shard_{place}"] = None
    return list(found)


def _tensor_item(block: Block, depths: Mapping[str, int]) -> WriteItem:
    entry, chunk = block.entry, block.chunk
    return WriteItem(
        index=MetadataIndex(entry.key, chunk.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, TensorProperties(dtype=entry.dtype), entry.size(depths)),
    )


def _metadata(blocks: Sequence[Block], depths: Mapping[str, int], extras: Sequence[str]) -> Metadata:
    found: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    for block in blocks:
        entry = block.entry
        properties = TensorProperties(dtype=entry.dtype)
        stored = found.setdefault(entry.key, TensorStorageMetadata(properties, entry.size(depths), []))
        if isinstance(stored, TensorStorageMetadata):
            stored.chunks.append(block.chunk)
    return Metadata(state_dict_metadata=found | {key: BytesStorageMetadata() for key in extras})


class _Source(SavePlanner):
    """Answers torch's writer; the plan is made before."""

    def __init__(self, blocks: Mapping[MetadataIndex, Block], tensor_of: Callable[[Block], torch.Tensor]) -> None:
        self._blocks, self._tensor_of = blocks, tensor_of

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            nothing = io.BytesIO()
            torch.save([None], nothing)
            return nothing
        block = self._blocks[write_item.index]
        tensor = self._tensor_of(block).to(block.entry.dtype)
        if block.rows is None and tuple(tensor.shape) != block.entry.shape:
            raise AssertionError(f"{block.entry.key}: {tuple(tensor.shape)}")
        return tensor.reshape(block.chunk.sizes).contiguous()

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        raise NotImplementedError


# ---- reading


class StoredWeights:
    """A checkpoint's tensors by key. Raises DataError for a checkpoint that is broken or of another format."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata = read_metadata(folder)
        for path in {str(info.relative_path) for info in self._metadata.storage_data.values()}:
            if Path(path).name != path:
                raise DataError(f"{folder / METADATA} names the file {path!r:.80}, which does not lie in its folder")
        self._reader = FileSystemReader(folder)
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.tensors: Mapping[str, TensorStorageMetadata] = {
            key: stored
            for key, stored in self._metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    def entry(self, key: str, layer: int | None, shape: tuple[int, ...]) -> Entry:
        """Raises DataError where it is not there, or in another shape."""
        stored = self.tensors.get(key)
        entry = Entry(key, layer, shape, stored.properties.dtype if stored else torch.float32)
        if stored is None or not _holds(stored.size, entry):
            found = "is missing" if stored is None else f"has the shape {tuple(stored.size)}"
            raise DataError(f"{self._folder}: {key} {found}, which does not fit the recipe of this checkpoint")
        return entry

    def read(self, key: str, layer: int | None, shape: tuple[int, ...]) -> torch.Tensor:
        """Of a stacked key that layer's tensor; the first rows where more are stored. Raises DataError."""
        entry = self.entry(key, layer, shape)
        target = torch.empty(tuple(entry.chunk.sizes), dtype=entry.dtype)
        items = create_read_items_for_chunk_list(key, self.tensors[key], [entry.chunk])
        try:
            self._reader.read_data(LoadPlan(items), _Target(target)).wait()
        except TORN as error:
            places = [self._metadata.storage_data.get(item.storage_index) for item in items]
            files = sorted({place.relative_path if place else METADATA for place in places})
            raise DataError(f"{self._folder / files[0]} is torn: {key} can't be read ({error!r:.200})") from error
        return target.reshape(shape)


def _holds(size: Sequence[int], entry: Entry) -> bool:
    """Whether a stored tensor of that size has all of the entry: only the first axis of what is not stacked may be
    longer, which is the vocabulary's padding."""
    if entry.layer is not None:
        return tuple(size[1:]) == entry.shape and entry.layer < size[0]
    return len(size) == len(entry.shape) and tuple(size[1:]) == entry.shape[1:] and size[0] >= entry.shape[0]


class _Target(LoadPlanner):
    """Answers torch's reader: one tensor that is filled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        part = self._tensor
        for axis, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(axis, offset, length)
        return part

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise NotImplementedError

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        raise NotImplementedError

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        raise NotImplementedError


# ---- metadata


_CLASSES = {
    (module.__name__, name)
    for module, names in (
        (
            dcp_metadata,
            "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties "
            "TensorStorageMetadata _MEM_FORMAT_ENCODING",
        ),
        (dcp_planner, "BytesIOWriteData SavePlan TensorWriteData WriteItem WriteItemType"),
        (dcp_filesystem, "_StorageInfo _StoragePrefix"),
    )
    for name in names.split()
} | {("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"), ("builtins", "set")}


class _Unpickler(pickle.Unpickler):
    """Builds the classes of a checkpoint's metadata, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def read_metadata(folder: Path) -> Metadata:
    """Raises DataError."""
    file = folder / METADATA
    try:
        with file.open("rb") as stream:
            found = _Unpickler(stream).load()
    except FileNotFoundError as error:
        raise DataError(f"{folder} is no checkpoint in megatron-core's distributed format: no {METADATA}") from error
    except Exception as error:  # whatever a broken pickle raises
        raise DataError(f"{file} can't be read: {error!r:.200}") from error
    if not isinstance(found, Metadata):
        raise DataError(f"{file} holds no metadata of a checkpoint")
    if not _describes_all(found):
        raise DataError(f"{file} does not say what each tensor is")
    if not _places_all(found):
        raise DataError(f"{file} does not say where each tensor lies")
    return found


def _describes_all(metadata: Metadata) -> bool:
    """A damaged pickle may have left out any attribute."""
    try:
        return all(
            isinstance(key, str) and (isinstance(stored, BytesStorageMetadata) or _describes(stored))
            for key, stored in metadata.state_dict_metadata.items()
        )
    except (AttributeError, TypeError):
        return False


def _describes(stored: TensorStorageMetadata) -> bool:
    sizes = (stored.size, *(size for chunk in stored.chunks for size in (chunk.offsets, chunk.sizes)))
    return (
        isinstance(stored, TensorStorageMetadata)
        and isinstance(stored.properties.dtype, torch.dtype)
        and all(isinstance(each, int) for size in sizes for each in size)
    )


def _places_all(metadata: Metadata) -> bool:
    """As above."""
    try:
        return all(
            isinstance(place.relative_path, str) and isinstance(place.offset, int) and isinstance(place.length, int)
            for place in metadata.storage_data.values()
        )
    except AttributeError:
        return False
