"""The index of a file of tokens, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatronapp.core.errors import DataError
from megatronapp.trainer.data.indexed import HEADER, DocumentWriter, read_index


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    with DocumentWriter(tmp_path / "t", 256) as writer:
        writer.add(np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32))
        writer.commit()
    return tmp_path / "t"


def test_lengths_and_borders_are_read(prefix: Path) -> None:
    lengths, borders = read_index(str(prefix))

    assert (lengths.tolist(), borders.tolist()) == ([5, 3], [0, 2])


@pytest.mark.parametrize(
    ("place", "number"),
    [(2, 200), (3, 10**9), (3, 10**15), (3, 2**64 - 1), (4, 10**9), (4, 2**63), (4, 0)],
)
def test_an_index_that_names_more_than_it_holds_is_refused_before_memory_is_taken(
    prefix: Path, place: int, number: int
) -> None:
    index = prefix.with_name("t.idx")
    content = index.read_bytes()
    header = list(HEADER.unpack(content[: HEADER.size]))
    header[place] = number
    index.write_bytes(HEADER.pack(*header) + content[HEADER.size :])

    with pytest.raises(DataError, match=r"t\.idx"):
        read_index(str(prefix))
