"""What `megatronapp run` says, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from megatronapp.cli import local
from megatronapp.cli.main import app
from megatronapp.core.errors import ConfigError, PluginMissingError
from tests.support.certificates import Authority

JOB = """
apiVersion: megatronapp.io/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec: {procPerNode: 2, parallelism: {pipeline: 2}, plugins: {dpp: {enabled: true}}}
"""


def test_a_job_that_is_refused_is_not_said_to_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    monkeypatch.setattr(local, "find", lambda folder: local.LocalPlatform("127.0.0.1:7601", "token", ""))
    monkeypatch.setattr("megatronapp.trainer.jobs.plan.installed", lambda: ["scan"])

    said = CliRunner().invoke(app, ["run", str(file), "--folder", str(tmp_path)])

    assert isinstance(said.exception, PluginMissingError)
    assert said.stdout == ""


@pytest.mark.parametrize("address", ["collector.example.com:7601", ""])
def test_ranks_are_given_the_certificates_for_a_collector_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    authority = Authority(tmp_path / "tls")
    monkeypatch.setattr(local, "find", lambda folder: local.LocalPlatform("127.0.0.1:7601", "token", ""))
    monkeypatch.setenv("MEGATRONAPP_COLLECTOR_CA_FILE", str(authority.ca_file))
    asked: dict[str, Any] = {}

    def run(job: object, **given: Any) -> SimpleNamespace:
        asked.update(given)
        return SimpleNamespace(exit_code=0)

    monkeypatch.setattr("megatronapp.trainer.jobs.run_job_until_signal", run)
    flags = ["--collector-address", address] if address else []
    CliRunner().invoke(app, ["run", str(tmp_path / "job.yaml"), "--folder", str(tmp_path), *flags])

    assert asked["certificates"] == ({"MEGATRONAPP_COLLECTOR_CA_FILE": str(authority.ca_file)} if address else {})


def test_a_certificate_that_is_none_is_said_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.setenv("MEGATRONAPP_COLLECTOR_CA_FILE", str(tmp_path / "job.yaml"))

    said = CliRunner().invoke(app, ["run", str(tmp_path / "job.yaml"), "--collector-address", "a:1"])

    assert isinstance(said.exception, ConfigError)
    assert "holds no CA certificates" in str(said.exception)
