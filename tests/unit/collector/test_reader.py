"""Reading for somebody who has gone ends with the file that is being read, whatever is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from megatronapp.collector.reader import Snapshot

FILES = 20


class Files:
    """A store of files without rows, whose client leaves while the second one is read."""

    def __init__(self) -> None:
        self.looked_at = 0

    def stopped(self) -> bool:
        return self.looked_at >= 2

    def read(self, parts: list[Any], *_: Any) -> Iterator[Any]:
        self.looked_at += len(parts)
        return iter(())

    def step_rows(self, parts: list[Any], *_: Any) -> Iterator[dict[int, int]]:
        for number, _part in enumerate(parts):
            self.looked_at += 1
            yield {number: 1}


@pytest.mark.parametrize("what", ["steps of a grid", "spans"])
def test_no_file_is_read_for_a_client_that_has_gone(what: str) -> None:
    files: Any = Files()
    snapshot = Snapshot(files, 0, 10**12, frozenset(), [object()] * FILES, [], [], {})  # type: ignore[list-item]

    read: Iterator[Any] = (
        snapshot.spans(files.stopped) if what == "spans" else snapshot.step_tables(["step"], files.stopped)
    )

    assert list(read) == []
    assert files.looked_at == 2
