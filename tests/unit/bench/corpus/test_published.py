"""Real jobs of which it is known what was wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import corpus
from bench.corpus import published
from bench.corpus.published import FLIGHT_RECORDER, OF_OTHERS, OF_US, SCRAPES

STANDING = [each for each in OF_OTHERS if each.place.startswith((FLIGHT_RECORDER, SCRAPES))]


@pytest.mark.parametrize("case", STANDING, ids=lambda c: c.place)
def test_who_was_broken_is_paged_and_nobody_else(shared_data: Path, case: published.Published) -> None:
    pages = published.pages(shared_data / case.place)

    assert sorted(rank for page in pages for rank in page.ranks) == sorted(case.ranks)
    assert all(fault.explains(page.kind, page.cause) for page in pages for fault in case.label.faults)


def test_without_the_files_of_others_those_of_ours_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "OF_US", OF_US[:1])

    code = corpus.main(["published", str(tmp_path)])

    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert "published: slow_compute" in printed.out
