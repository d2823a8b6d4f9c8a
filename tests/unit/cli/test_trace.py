"""`trace aggregate` takes MegaScan's spellings of its flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatronapp.cli.main import app


@pytest.mark.parametrize("spelling", ["-b", "--b", "--bench-dir", "--benchmark-dir", "--benchmark_dir", "--benchmark"])
def test_every_spelling_names_the_folder(spelling: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none"

    done = CliRunner().invoke(app, ["trace", "aggregate", spelling, str(missing), "-o", str(tmp_path / "t.json")])

    assert done.exit_code == 1
    assert f"{missing}: no such file or folder" in done.output + capfd.readouterr().err
