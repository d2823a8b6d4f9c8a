"""What `megatronapp run` says, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatronapp.cli import local
from megatronapp.cli.main import app
from megatronapp.core.errors import PluginMissingError

JOB = """
apiVersion: megatronapp.io/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec: {procPerNode: 1, plugins: {scope: {enabled: true}}}
"""


def test_a_job_that_is_refused_is_not_said_to_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    monkeypatch.setattr(local, "find", lambda folder: local.LocalPlatform("127.0.0.1:7601", "token", ""))

    said = CliRunner().invoke(app, ["run", str(file), "--folder", str(tmp_path)])

    assert isinstance(said.exception, PluginMissingError)
    assert said.stdout == ""
