"""Cases of the fault corpus that were recorded of real ranks, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.corpus import case, ours

FOLDERS = list(case.find(Path(__file__).resolve().parents[3] / "data" / "corpus"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_who_was_broken_is_paged_and_nobody_else(folder: Path) -> None:
    with case.opened(folder) as found:
        pages = ours.judge(found)
        faults = found.label.faults

    assert {rank for page in pages for rank in page.ranks} == found.label.ranks
    assert all(any(fault.explains(page.kind, page.cause) for fault in faults) for page in pages)
