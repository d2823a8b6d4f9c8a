"""What `megatronapp serve` makes of its flags."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from megatronapp.cli.main import app
from megatronapp.cli.serve import hints, served_job
from megatronapp.core.errors import ConfigError, NotFoundError


def test_a_job_that_serves_a_checkpoint_on_the_ranks_of_its_layout(tmp_path: Path) -> None:
    job = served_job("gpt", tmp_path, ["--max-positions", "32"], tensor=2, pipeline=3)

    assert (job.metadata.name, job.spec.mode, job.spec.world_size) == ("gpt", "serve", 6)
    flags = job.spec.trainer_args()
    assert flags[0] == "--serve"
    assert "--scope" in flags
    for expected in (
        ["--tensor-model-parallel-size", "2"],
        ["--pipeline-model-parallel-size", "3"],
        ["--load", str(tmp_path)],
        ["--max-positions", "32"],
    ):
        at = flags.index(expected[0])
        assert flags[at : at + 2] == expected


def test_what_can_not_be_served_is_said_before_anything_starts(tmp_path: Path) -> None:
    gone = CliRunner().invoke(app, ["serve", "--checkpoint", str(tmp_path / "gone")])
    nameless = CliRunner().invoke(app, ["serve", "--checkpoint", str(tmp_path), "--name", "No Name"])

    assert isinstance(gone.exception, NotFoundError)
    assert "gone: there is no such folder" in str(gone.exception)
    assert isinstance(nameless.exception, ConfigError)
    assert "metadata.name" in str(nameless.exception)


def test_how_to_ask_is_a_command_with_the_platforms_own_token(tmp_path: Path) -> None:
    text = "\n".join(hints("http://127.0.0.1:8080/", tmp_path))

    assert "curl http://127.0.0.1:8080/v1/completions" in text
    assert f"megatronapp token --folder {tmp_path}" in text
