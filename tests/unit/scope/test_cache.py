"""A cache's file, and files that are none."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from megatronapp.core.errors import DataError
from megatronapp.scope.cache import Cache, load_npz


def written() -> bytes:
    file = io.BytesIO()
    Cache({"hook_embed": np.ones((1, 2, 4), np.float32)}, [[1, 2]]).save(file)  # type: ignore[arg-type]
    return file.getvalue()


def zipped(**arrays: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def huge() -> bytes:
    """An array that says that it has 10^15 numbers."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
    return file.getvalue()


def encrypted() -> bytes:
    """What says that it is: the flags of its first file, as the directory has them."""
    content = bytearray(written())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        written()[:-30],
        written().replace(b"PK\x01\x02", b"PK\x01\x03", 1),
        written().replace(np.ones(8, np.float32).tobytes(), bytes(32)),
        zipped(tokens=b""),
        zipped(tokens=huge()),
        zipped(values=b"\x93NUMPY"),
        encrypted(),
    ],
    ids=range(9),
)
def test_what_is_no_cache_is_one_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.npz").write_bytes(content)

    with pytest.raises(DataError, match=r"c\.npz is no NPZ of a cache"):
        load_npz(tmp_path / "c.npz")
