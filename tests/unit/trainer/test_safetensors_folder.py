"""Files that are written a tensor at a time, read by the safetensors library."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatronapp.core.errors import DataError
from megatronapp.trainer.safetensors_folder import DTYPES, Planned, TensorFolder, write

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
plans = st.lists(st.tuples(shapes, st.sampled_from(list(DTYPES.values()))), min_size=1, max_size=8)


@given(plan=plans, most=st.integers(1, 300))
def test_what_is_written_is_read_and_shards_keep_to_their_size(
    plan: list[tuple[tuple[int, ...], torch.dtype]], most: int
) -> None:
    planned = [Planned(f"tensor.{number}", shape, dtype) for number, (shape, dtype) in enumerate(plan)]
    tensors = [torch.randn(each.shape).to(each.dtype) for each in planned]

    with tempfile.TemporaryDirectory() as name:
        write(Path(name), planned, tensors, most)
        folder = TensorFolder(Path(name))
        read = {each.name: folder.read(each.name) for each in planned}
        files = {stored.file for stored in folder.tensors.values()}
        of_library = {key: value for file in files for key, value in load_file(str(file)).items()}
        held = [[each.size for each in planned if folder.tensors[each.name].file == file] for file in files]

    assert read.keys() == of_library.keys()
    for each, tensor in zip(planned, tensors, strict=True):
        assert read[each.name].dtype == tensor.dtype
        assert read[each.name].equal(tensor)
        assert of_library[each.name].equal(tensor)
    assert all(sum(sizes) <= most or sum(1 for size in sizes if size) == 1 for sizes in held)


def test_a_header_that_breaks_lines_is_told_in_one(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F32\\r\\nX: y", "shape": [1], "data_offsets": [0, 4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    with pytest.raises(DataError) as raised:
        TensorFolder(tmp_path)

    assert "is torn or no safetensors file" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
