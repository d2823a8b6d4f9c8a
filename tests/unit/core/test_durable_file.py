"""A reader finds the old content or the new."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core import durable_file
from megatronapp.core.durable_file import UNFINISHED, replace_file


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "claim.json"
    file.write_text("old")

    replace_file(file, b"new")

    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_the_old_content_is_there_until_the_new_one_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "claim.json"
    file.write_text("old")

    def broken(path: Path) -> None:
        assert path.read_bytes() == b"new"
        raise OSError("the disk is gone")

    monkeypatch.setattr(durable_file, "sync", broken)

    with pytest.raises(OSError, match="gone"):
        replace_file(file, b"new")

    assert file.read_text() == "old"
    assert (tmp_path / f"claim.json{UNFINISHED}").exists()
