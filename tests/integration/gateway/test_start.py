"""The gateway as a process, told by its environment: empty secrets are refused, and who has no token may do nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from megatronapp.core.errors import ConfigError
from megatronapp.gateway.settings import GatewaySettings
from tests.support.ports import free_port

COOKIE = "megatronapp_session=a~operator~99999999999~"
PREFIX = "MEGATRONAPP_GATEWAY_"
SECRETS = [name.upper() for name, field in GatewaySettings.model_fields.items() if "Secret" in str(field.annotation)]
STATIC = {"AUTH": "static", "VIEWER_TOKEN": "look", "OPERATOR_TOKEN": "change"}
WISH = {"enabled": True, "interval": 5, "continuous_iterations": 2, "granularity": "base"}


def process(folder: Path, **settings: str) -> subprocess.Popen[bytes]:
    given = {"QUARANTINE_DIR": str(folder), "HTTP_PORT": "0", "GRPC_PORT": "0", **settings}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MEGATRONAPP_")}
    environment = inherited | {PREFIX + name: value for name, value in given.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "megatronapp.gateway"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[httpx.Client]:
    port = free_port()
    gateway = process(folder, PORT=str(port), **settings)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        end = time.monotonic() + 60
        while time.monotonic() < end and gateway.poll() is None:
            try:
                client.get("/api/v1/session")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield client
    gateway.terminate()
    gateway.communicate(timeout=30)


def test_the_secrets_are_those_that_are_meant() -> None:
    expected = {"OPERATOR_TOKEN", "VIEWER_TOKEN", "TOKEN", "SESSION_KEY", "COLLECTOR_TOKEN", "ALERTMANAGER_TOKEN"}
    expected |= {"FEISHU_SECRET", "WEBHOOK_BEARER", "PHONE_BEARER", "REDIS_URL", "SLACK_URL"}
    assert expected <= set(SECRETS)


@pytest.mark.parametrize("value", ["", "  "], ids=["empty", "blank"])
@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_may_be_set_and_empty(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other, text in STATIC.items():
        monkeypatch.setenv(PREFIX + other, text)
    monkeypatch.setenv(PREFIX + name, value)

    with pytest.raises(ConfigError, match=PREFIX + name):
        GatewaySettings.load()


@pytest.mark.parametrize(
    "name",
    [
        "OPERATOR_TOKEN",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("SESSION_KEY", "ALERTMANAGER_TOKEN", "REDIS_URL")),
    ],
)
def test_a_gateway_with_an_empty_secret_does_not_start_and_names_it(name: str, tmp_path: Path) -> None:
    gateway = process(tmp_path, **STATIC | {name: "", "PORT": "0"})

    _, said = gateway.communicate(timeout=60)

    assert gateway.returncode == 2
    assert f"{PREFIX}{name}" in said.decode()
    assert "Traceback" not in said.decode()


@pytest.mark.parametrize("tokens", [STATIC, {"AUTH": "static", "VIEWER_TOKEN": "look"}], ids=["both", "viewers only"])
def test_nobody_without_a_token_may_do_anything(tmp_path: Path, tokens: dict[str, str]) -> None:
    with running(tmp_path, **tokens) as client:
        who = client.get("/api/v1/session").json()
        for headers in (
            {},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer wrong"},
            {"Cookie": "megatronapp_session="},
        ):
            answers = [
                client.get("/api/v1/jobs", headers=headers),
                client.put("/api/v1/jobs/any/trace-control", json=WISH, headers=headers),
                client.post("/api/v1/alerts", json={}, headers=headers),
            ]
            assert {answer.status_code for answer in answers} == {401}, headers
        signed_in = [client.post("/api/v1/session", json={"token": token}).status_code for token in ("", " ")]

    assert (who["authenticated"], who["role"]) == (False, None)
    assert signed_in == [401, 401]
