"""What `megatronapp attach` tells the ranks of the platform on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from typer.testing import CliRunner

from megatronapp.cli import local
from megatronapp.cli.main import app
from megatronapp.trainer.attach import launch
from megatronapp.trainer.environment import GATEWAY_ADDRESS


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of the command."""
    found: dict[str, str] = {}

    def run(_: Sequence[str], given: Mapping[str, str]) -> int:
        found.update(given)
        return 0

    here = local.LocalPlatform("127.0.0.1:7601", "token", "", "127.0.0.1:7602")
    monkeypatch.setattr(local, "find", lambda _: here)
    monkeypatch.setattr(launch, "run", run)
    for name in ("MEGATRONAPP_COLLECTOR_ADDRESS", GATEWAY_ADDRESS):
        monkeypatch.delenv(name, raising=False)
    return found


def test_the_platform_of_this_machine_is_told_of_the_run_and_shows_its_model(variables: dict[str, str]) -> None:
    assert CliRunner().invoke(app, ["attach", "--scope", "--", "torchrun", "x.py"]).exit_code == 0

    assert variables["MEGATRONAPP_COLLECTOR_ADDRESS"] == "127.0.0.1:7601"
    assert variables[GATEWAY_ADDRESS] == "127.0.0.1:7602"


def test_a_gateway_that_was_named_is_kept(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GATEWAY_ADDRESS, "gateway:7602")

    CliRunner().invoke(app, ["attach", "--scope", "--", "torchrun", "x.py"])

    assert variables[GATEWAY_ADDRESS] == "gateway:7602"
