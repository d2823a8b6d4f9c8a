"""A part of the fault corpus, on seeds for tuning: nothing is below the floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import corpus

pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]


def test_an_eighth_of_the_corpus_is_judged_rightly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = corpus.main(["all", str(tmp_path), "--seeds", "2", "--every", "8"])

    assert code == 0, capsys.readouterr()
