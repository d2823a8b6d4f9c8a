"""What `megatronapp analyze` says of a path that is not a trace's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from megatronapp.core.errors import UnavailableError, UsageError
from megatronapp.detector.analyze import analyze


def test_a_tree_that_changes_while_it_is_looked_through_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanishing(folder: Path, pattern: str) -> Iterator[Path]:
        yield from (folder / "gone").iterdir()  # as /proc does for a process that has ended meanwhile

    monkeypatch.setattr(Path, "rglob", vanishing)

    with pytest.raises(UnavailableError, match=r"gone can't be read .*; name the folder of the trace itself"):
        analyze(tmp_path)


def test_one_ranks_file_is_answered_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.pb"
    file.write_bytes(b"")

    with pytest.raises(UsageError, match=f"give its folder: megatronapp analyze {tmp_path}$"):
        analyze(file)
