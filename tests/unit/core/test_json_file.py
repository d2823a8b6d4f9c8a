"""JSON that somebody else wrote: its value, or one error that names the file, in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.json_file import load_json, load_json_file

BAD = {
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a long number": b"9" * 5_000,
    "not UTF-8": b'"\xff\xfe"',
    "nothing": b"",
    "half of it": b'{"a": [1,',
}


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_hard_to_read_is_refused_in_one_line(tmp_path: Path, text: bytes, suffix: str) -> None:
    path = tmp_path / f"trace.{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)

    with pytest.raises(DataError, match=r"^\S+/trace\.json\S* is not readable as JSON: [^\n]+$"):
        load_json_file(path)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"[1, 2]")[:-4], gzip.compress(b"[1]")[:10] + b"\xff" * 9]
)
def test_what_is_no_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)

    with pytest.raises(DataError, match="is not readable as gzip"):
        load_json_file(path)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_no_more_is_read_than_may_be(tmp_path: Path, suffix: str) -> None:
    path, text = tmp_path / f"trace.{suffix}", b'"' + b"x" * (3 << 20) + b'"'
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)

    with pytest.raises(DataError, match="2 MiB"):
        load_json_file(path, 2 << 20)
    assert len(load_json_file(path, 4 << 20)) == 3 << 20


def test_a_file_that_is_not_there_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="can't be read: No such file"):
        load_json_file(tmp_path / "none.json")


def test_a_number_beyond_all_numbers_is_the_readers_matter() -> None:
    assert load_json("[1e400, 2]", "text") == [float("inf"), 2]
