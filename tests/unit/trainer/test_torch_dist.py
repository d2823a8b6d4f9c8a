"""Weights in megatron-core's format, and metadata that is none."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer import torch_dist
from megatronapp.trainer.torch_dist import METADATA, Block, Entry, StoredWeights, read_metadata, write

EMBEDDING = Entry("embedding", None, (5, 3), torch.float32)
LAYERS = [Entry("decoder.layers.w", layer, (2, 3), torch.bfloat16) for layer in range(4)]


def tensor_of(block: Block) -> torch.Tensor:
    whole = tensor(block.entry)
    return whole if block.rows is None else whole[block.rows]


def tensor(entry: Entry) -> torch.Tensor:
    start = 100 * (entry.layer or 0)
    return torch.arange(start, start + torch.Size(entry.shape).numel()).reshape(entry.shape).to(entry.dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, [EMBEDDING, *LAYERS], {"decoder": 4}, tensor_of, {"step": 0})
    return tmp_path


def test_each_layer_is_read_by_itself(folder: Path) -> None:
    stored = StoredWeights(folder)

    assert tuple(stored.tensors["decoder.layers.w"].size) == (4, 2, 3)
    for entry in (EMBEDDING, *LAYERS):
        assert stored.read(entry.key, entry.layer, entry.shape).equal(tensor(entry))


def test_a_large_tensor_is_written_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dist, "BLOCK_BYTES", 24)
    asked: list[tuple[int, ...]] = []

    def of(block: Block) -> torch.Tensor:
        asked.append(tuple(tensor_of(block).shape))
        return tensor_of(block)

    write(tmp_path, [EMBEDDING, *LAYERS], {"decoder": 4}, of, {"step": 0})

    assert asked == [(2, 3), (2, 3), (1, 3), *([(2, 3)] * 4)]
    assert StoredWeights(tmp_path).read("embedding", None, (5, 3)).equal(tensor(EMBEDDING))


def test_rows_that_pad_the_vocabulary_are_left(folder: Path) -> None:
    assert StoredWeights(folder).read("embedding", None, (4, 3)).equal(tensor(EMBEDDING)[:4])


@pytest.mark.parametrize(
    ("key", "layer", "shape"),
    [
        ("nothing", None, (5, 3)),
        ("embedding", None, (6, 3)),
        ("embedding", None, (5, 2)),
        ("embedding", None, (5,)),
        ("decoder.layers.w", 4, (2, 3)),
        ("decoder.layers.w", 0, (2, 2)),
    ],
)
def test_what_is_not_there_is_refused(key: str, layer: int | None, shape: tuple[int, ...], folder: Path) -> None:
    with pytest.raises(DataError, match=key):
        StoredWeights(folder).read(key, layer, shape)


def stored_file(folder: Path, key: str) -> Path:
    (name, *_) = [i.relative_path for at, i in read_metadata(folder).storage_data.items() if at.fqn == key]
    return folder / name


@pytest.mark.parametrize("error", [struct.error("unpack"), AssertionError(), OverflowError("too large"), KeyError("a")])
def test_whatever_torchs_reader_raises_for_torn_bytes_is_told_in_one_line(
    error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", Mock(side_effect=error))

    with pytest.raises(DataError, match=f"{stored_file(folder, 'embedding').name} is torn: embedding can't be read"):
        StoredWeights(folder).read("embedding", None, (5, 3))


def test_metadata_that_does_not_say_where_a_tensor_lies_is_torn(folder: Path) -> None:
    metadata = read_metadata(folder)
    metadata.storage_data = {at: info for at, info in metadata.storage_data.items() if at.fqn != "embedding"}
    (folder / METADATA).write_bytes(pickle.dumps(metadata))

    with pytest.raises(DataError, match="metadata is torn: embedding can't be read"):
        StoredWeights(folder).read("embedding", None, (5, 3))


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


@pytest.mark.parametrize(
    "content", [b"", b"text", pickle.dumps(Attack()), pickle.dumps({}), pickle.dumps(torch.nn.Linear(1, 1))]
)
def test_metadata_builds_nothing_but_metadata(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / METADATA).write_bytes(content)

    with pytest.raises(DataError, match="metadata"):
        read_metadata(tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == [METADATA]


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no checkpoint in megatron-core's distributed format"):
        read_metadata(tmp_path)


def test_a_file_outside_of_the_checkpoint_is_not_read(folder: Path) -> None:
    metadata = read_metadata(folder)
    for info in metadata.storage_data.values():
        info.relative_path = "../elsewhere"
    (folder / METADATA).write_bytes(pickle.dumps(metadata))

    with pytest.raises(DataError, match="elsewhere"):
        StoredWeights(folder)


@pytest.mark.parametrize("attribute", ["relative_path", "offset", "length"])
def test_a_place_that_lacks_an_attribute_is_refused(attribute: str, folder: Path) -> None:
    metadata = read_metadata(folder)
    for info in metadata.storage_data.values():
        del info.__dict__[attribute]
    (folder / METADATA).write_bytes(pickle.dumps(metadata))

    with pytest.raises(DataError, match="does not say where each tensor lies"):
        read_metadata(folder)


@pytest.mark.parametrize("attribute", ["size", "chunks", "properties"])
def test_a_tensor_that_lacks_an_attribute_is_refused(attribute: str, folder: Path) -> None:
    metadata = read_metadata(folder)
    for stored in metadata.state_dict_metadata.values():
        stored.__dict__.pop(attribute, None)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))

    with pytest.raises(DataError, match="does not say what each tensor is"):
        read_metadata(folder)


def test_metadata_without_tensors_of_its_own_is_refused(folder: Path) -> None:
    metadata = read_metadata(folder)
    del metadata.__dict__["state_dict_metadata"]
    (folder / METADATA).write_bytes(pickle.dumps(metadata))

    with pytest.raises(DataError, match="does not say what each tensor is"):
        read_metadata(folder)
