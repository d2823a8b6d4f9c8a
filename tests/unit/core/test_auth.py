import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from megatronapp.core.auth import (
    AllowAll,
    PodClaim,
    Role,
    StaticTokens,
    TokenReviewer,
    authenticator,
    bearer,
)
from megatronapp.core.errors import AuthError, ConfigError, UnavailableError
from megatronapp.core.settings import ServiceSettings
from megatronapp.core.token_file import read_token

ROOT = Path(__file__).resolve().parents[3]
DEMO = PodClaim("local/demo", "run-1", 1, "host")
GPT = PodClaim("team-a/gpt", "uid-1", 2, "node-7")
TOKENS = StaticTokens(pods=SecretStr("pod"), viewer=SecretStr("view"), operator=SecretStr("op"))


async def test_static_tokens_give_roles() -> None:
    await TOKENS.pod("pod", DEMO)

    assert await TOKENS.reader("view") is Role.VIEWER
    assert await TOKENS.reader("op") is Role.OPERATOR


@pytest.mark.parametrize("token", ["", "wrong", "view", "pod "])
async def test_a_wrong_pod_token_is_refused(token: str) -> None:
    with pytest.raises(AuthError, match="MEGATRONAPP_TOKEN_FILE"):
        await TOKENS.pod(token, DEMO)


@pytest.mark.parametrize("token", ["", "wrong", "pod"])
async def test_a_wrong_reader_token_is_refused(token: str) -> None:
    with pytest.raises(AuthError):
        await TOKENS.reader(token)


async def test_a_token_that_is_not_set_accepts_nobody() -> None:
    with pytest.raises(AuthError):
        await StaticTokens().reader("")


@pytest.mark.parametrize("empty", ["", " ", "\n"])
async def test_an_empty_token_is_nobodys(empty: str) -> None:
    tokens = StaticTokens(pods=SecretStr(empty), viewer=SecretStr(empty), operator=SecretStr(empty))

    with pytest.raises(AuthError):
        await tokens.pod(empty, DEMO)
    with pytest.raises(AuthError):
        await tokens.reader(empty)
    with pytest.raises(AuthError):
        await tokens.reader("")


async def test_loopback_allows_all() -> None:
    await AllowAll().pod("", DEMO)

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


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_token_file_that_is_empty_is_an_error_that_says_so(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)

    with pytest.raises(ConfigError, match="token is empty"):
        read_token(str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="can't be read"):
        read_token(str(tmp_path / "none"))


def review(**status: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(201, json={"status": status})


OF_RUN, OF_JOB = "megatronapp/team-a/gpt/uid-1", "megatronapp/team-a/gpt"


def good_status(
    pod: str = "gpt-2-0-x7k2p", namespace: str = "team-a", audience: str = OF_RUN, node: str = "node-7"
) -> dict[str, Any]:
    nodes = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    return {
        "authenticated": True,
        "audiences": [audience],
        "user": {
            "username": f"system:serviceaccount:{namespace}:default",
            "extra": {"authentication.kubernetes.io/pod-name": [pod]} | nodes,
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
    await auth.pod("projected", GPT)
    await auth.pod("projected", GPT)

    assert len(requests) == 1, "the second time the answer is remembered"
    assert json.loads(requests[0].content)["spec"] == {"token": "projected", "audiences": [OF_RUN, OF_JOB]}
    assert requests[0].headers["authorization"] == "Bearer own-token"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"authenticated": False}, "as its audience, or has expired"),
        (good_status(audience="megatronapp/team-a/other"), "as its audience"),
        (good_status(audience=f"{OF_JOB}/uid-2"), "does not name run uid-1"),
        (good_status(pod="other-2-0-x7k2p"), "no pod of job"),
        (good_status(pod="gpt-big-1-0"), "no pod of job"),
        (good_status(pod="gpt-1-0-x7k2p"), "is of attempt 1 of job team-a/gpt, the pod says 2"),
        (good_status(node="node-8"), "is of node node-8, the pod says 'node-7'"),
        (good_status(namespace="team-b"), "no service account in the namespace"),
        (good_status() | {"user": {}}, "no service account in the namespace"),
    ],
    ids=[
        "expired", "other audience", "other run", "other job's pod", "longer name", "other attempt", "other node",
        "other namespace", "no user",
    ],
)  # fmt: skip
async def test_a_token_that_is_not_the_pods_own_is_refused(
    status: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AuthError, match=message):
        await reviewer(review(**status), tmp_path).pod("projected", GPT)


async def test_a_kubernetes_that_does_not_tell_the_node_takes_the_pods_word(tmp_path: Path) -> None:
    grant = await reviewer(review(**good_status(node="")), tmp_path).pod("projected", GPT)

    assert grant.may_open_run


@pytest.mark.parametrize(("audience", "may_open_run"), [(OF_RUN, True), (OF_JOB, False)])
async def test_a_token_without_the_runs_uid_may_not_open_a_run(
    audience: str, may_open_run: bool, tmp_path: Path
) -> None:
    grant = await reviewer(review(**good_status(audience=audience)), tmp_path).pod("projected", GPT)

    assert grant.may_open_run is may_open_run


async def test_an_answer_is_remembered_for_that_claim_alone(tmp_path: Path) -> None:
    auth = reviewer(review(**good_status()), tmp_path)
    await auth.pod("projected", GPT)

    for other in (replace(GPT, attempt=3), replace(GPT, node="node-8"), replace(GPT, job="team-b/gpt")):
        with pytest.raises(AuthError):
            await auth.pod("projected", other)


async def test_no_token_is_refused_without_asking_the_api_server(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="no token"):
        await reviewer(lambda request: httpx.Response(400), tmp_path).pod("", GPT)


async def test_an_api_server_that_fails_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as raised:
        await reviewer(lambda request: httpx.Response(500), tmp_path).pod("secret-token", GPT)

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


async def test_an_api_server_that_answers_nonsense_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        await reviewer(lambda request: httpx.Response(201, content=b"<html>"), tmp_path).pod("projected", GPT)


async def test_static_settings_become_static_tokens() -> None:
    auth = authenticator(ServiceSettings(auth="static", token=SecretStr("pod"), host="0.0.0.0"))

    await auth.pod("pod", DEMO)


async def test_the_static_token_of_pods_is_one_for_all_jobs_as_the_documents_say() -> None:
    for job in ("team-a/gpt", "team-b/llama"):
        assert (await TOKENS.pod("pod", PodClaim(job, "run-1", 1, "n1"))).may_open_run

    for document in ("SECURITY.md", "docs/collector.md"):
        said = " ".join((ROOT / document).read_text().split())
        assert re.search(r"\*\*one token is valid for all jobs", said, re.IGNORECASE), document


@pytest.mark.parametrize("token", ["\ud800", "pods\udcff"])
async def test_half_a_character_is_a_wrong_token(token: str) -> None:
    with pytest.raises(AuthError):
        await StaticTokens(viewer=SecretStr("viewer")).reader(token)


@pytest.mark.parametrize(
    "answer",
    [[], 7, {"status": []}, {"status": {"authenticated": 1}}, {"status": {"authenticated": True, "user": "x"}}],
)
async def test_an_api_server_that_answers_anything_lets_nobody_in(answer: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("own")
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
    client = httpx.AsyncClient(transport=transport, base_url="https://api")
    reviewer = TokenReviewer(client, StaticTokens(), str(tmp_path / "token"))

    with pytest.raises((AuthError, UnavailableError)):
        await reviewer.pod("token", PodClaim(job="team/gpt", run="run-1", attempt=1, node="n1"))
