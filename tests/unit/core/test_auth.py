import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from megatronapp.core.auth import AllowAll, Role, StaticTokens, TokenReviewer, authenticator, bearer, read_token
from megatronapp.core.errors import AuthError, ConfigError, UnavailableError
from megatronapp.core.settings import ServiceSettings

TOKENS = StaticTokens(pods=SecretStr("pod"), viewer=SecretStr("view"), operator=SecretStr("op"))


async def test_static_tokens_give_roles() -> None:
    await TOKENS.pod("pod", "local/demo")

    assert await TOKENS.reader("view") is Role.VIEWER
    assert await TOKENS.reader("op") is Role.OPERATOR


@pytest.mark.parametrize("token", ["", "wrong", "view", "pod "])
async def test_a_wrong_pod_token_is_refused(token: str) -> None:
    with pytest.raises(AuthError, match="MEGATRONAPP_TOKEN_FILE"):
        await TOKENS.pod(token, "local/demo")


@pytest.mark.parametrize("token", ["", "wrong", "pod"])
async def test_a_wrong_reader_token_is_refused(token: str) -> None:
    with pytest.raises(AuthError):
        await TOKENS.reader(token)


async def test_a_token_that_is_not_set_accepts_nobody() -> None:
    with pytest.raises(AuthError):
        await StaticTokens().reader("")


async def test_loopback_allows_all() -> None:
    await AllowAll().pod("", "local/demo")

    assert await AllowAll().reader("") is Role.OPERATOR


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ([("authorization", "Bearer abc")], "abc"),
        ([("x", "y"), ("authorization", b"Bearer abc")], "abc"),
        ([("authorization", "Basic abc")], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_bearer_reads_grpc_metadata(metadata: Any, token: str) -> None:
    assert bearer(metadata) == token


def test_a_token_file_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")

    assert read_token(str(tmp_path / "token")) == "abc"
    assert read_token("") == ""


def review(**status: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(201, json={"status": status})


def good_status(pod: str = "gpt-2-0-x7k2p", namespace: str = "team-a") -> dict[str, Any]:
    return {
        "authenticated": True,
        "audiences": ["megatronapp/team-a/gpt"],
        "user": {
            "username": f"system:serviceaccount:{namespace}:default",
            "extra": {"authentication.kubernetes.io/pod-name": [pod]},
        },
    }


def reviewer(answer: Callable[[httpx.Request], httpx.Response], tmp_path: Path) -> TokenReviewer:
    (tmp_path / "own").write_text("own-token")
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api")
    return TokenReviewer(client, TOKENS, own_token_file=str(tmp_path / "own"))


async def test_a_projected_token_of_the_jobs_pod_is_accepted(tmp_path: Path) -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return review(**good_status())(request)

    auth = reviewer(answer, tmp_path)
    await auth.pod("projected", "team-a/gpt")
    await auth.pod("projected", "team-a/gpt")

    assert len(requests) == 1, "the second time the answer is remembered"
    assert json.loads(requests[0].content)["spec"] == {"token": "projected", "audiences": ["megatronapp/team-a/gpt"]}
    assert requests[0].headers["authorization"] == "Bearer own-token"


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {"authenticated": True, "audiences": ["megatronapp/team-a/other"]},
        good_status(pod="other-2-0-x7k2p"),
        good_status(pod="gpt-big-1-0"),
        good_status(namespace="team-b"),
        good_status() | {"user": {}},
    ],
    ids=["expired", "other audience", "other job's pod", "longer name", "other namespace", "no user"],
)
async def test_a_token_that_is_not_the_jobs_own_is_refused(status: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="team-a/gpt"):
        await reviewer(review(**status), tmp_path).pod("projected", "team-a/gpt")


async def test_no_token_is_refused_without_asking_the_api_server(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="no token"):
        await reviewer(lambda request: httpx.Response(400), tmp_path).pod("", "team-a/gpt")


async def test_an_api_server_that_fails_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as raised:
        await reviewer(lambda request: httpx.Response(500), tmp_path).pod("secret-token", "team-a/gpt")

    assert "secret-token" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "listening on 0.0.0.0 without tokens is refused"),
        ({"auth": "static"}, "no token is set"),
        ({"auth": "kubernetes"}, "this is no pod"),
    ],
)
def test_settings_that_leave_a_door_open_or_shut_are_refused(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(ConfigError, match=message):
        authenticator(ServiceSettings(**settings))


async def test_static_settings_become_static_tokens() -> None:
    auth = authenticator(ServiceSettings(auth="static", token=SecretStr("pod"), host="0.0.0.0"))

    await auth.pod("pod", "local/demo")
