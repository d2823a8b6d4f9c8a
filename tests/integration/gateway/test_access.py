"""Who may do what: tokens, sessions, sign-in links, foreign pages, and the one shape of every refusal."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed, InvalidStatus

from megatronapp.core.auth import AllowAll, Role
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served, Start, next_event
from tests.integration.gateway.support import RUN, hello, message

CONTROL = f"/api/v1/jobs/{RUN}/trace-control"
WISH = {"enabled": True, "interval": 5, "continuous_iterations": 2, "granularity": "base"}
READS = [
    "/api/v1/jobs",
    "/api/v1/ranks",
    f"/api/v1/jobs/{RUN}",
    f"/api/v1/jobs/{RUN}/ranks",
    f"/api/v1/jobs/{RUN}/metrics",
    f"/api/v1/jobs/{RUN}/timeline",
    f"/api/v1/jobs/{RUN}/timeline/grid",
    f"/api/v1/jobs/{RUN}/clocks",
    f"/api/v1/jobs/{RUN}/trace",
    CONTROL,
    "/api/v1/findings",
    "/api/v1/findings/none",
]


@pytest.fixture
async def with_job(served: Served) -> Served:
    await served.publish(message(hello()))
    await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == RUN for job in jobs))
    return served


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_nothing_is_told_without_a_good_token(with_job: Served, token: str) -> None:
    async with with_job.client(token) as client:
        answers = [await client.get(path) for path in READS]
        answers.append(await client.put(CONTROL, json=WISH))

    assert {answer.status_code for answer in answers} == {401}
    for answer in answers:
        assert answer.json()["error"]["code"] == "unauthenticated"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("token", "status"), [(VIEWER, 403), (OPERATOR, 200)])
async def test_only_operators_change_what_a_job_does(with_job: Served, token: str, status: int) -> None:
    async with with_job.client(token) as client:
        seen = await client.get(CONTROL)
        changed = await client.put(CONTROL, json=WISH)

    assert seen.status_code == 200
    assert changed.status_code == status


async def test_a_token_becomes_a_session_that_can_be_closed(with_job: Served) -> None:
    async with with_job.client("") as client:
        signed_in = await client.post("/api/v1/session", json={"token": OPERATOR})
        inside = await client.put(CONTROL, json=WISH)
        who = (await client.get("/api/v1/session")).json()
        cookie = dict(client.cookies)
        await client.delete("/api/v1/session")
        after = await client.get("/api/v1/jobs")
    async with with_job.client("", cookies=cookie) as thief:
        stolen = await thief.get("/api/v1/jobs")

    assert signed_in.json()["role"] == who["role"] == "operator"
    assert who["expires_unix_seconds"] > 0
    flags = signed_in.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert OPERATOR not in flags
    assert [inside.status_code, after.status_code, stolen.status_code] == [200, 401, 401]


async def test_a_wrong_token_opens_no_session(served: Served) -> None:
    async with served.client("") as client:
        answer = await client.post("/api/v1/session", json={"token": "guess"})

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "guess" not in answer.text


async def test_a_stranger_is_told_that_he_is_one(served: Served) -> None:
    async with served.client("") as client:
        answer = await client.get("/api/v1/session")

    stranger = {"authenticated": False, "role": None, "name": "", "can_silence": False, "expires_unix_seconds": None}
    assert answer.json() == stranger


async def test_a_sign_in_link_works_once_and_leaves_the_address(served: Served) -> None:
    token = served.gateway.links.new(Role.OPERATOR)

    async with served.client("") as client:
        opened = await client.get("/", params={"token": token})
        who = (await client.get("/api/v1/session")).json()
        again_inside = await client.get("/", params={"token": token})
    async with served.client("") as stranger:
        again_outside = await stranger.get("/", params={"token": token})

    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert who["role"] == "operator"
    assert (again_inside.status_code, again_inside.headers["location"]) == (303, "/")
    assert again_outside.status_code == 401
    assert "set-cookie" not in again_outside.headers


async def test_replicas_with_one_key_share_sessions(start: Start) -> None:
    first, second = [await start(session_key="the same") for _ in range(2)]

    async with first.client("") as client:
        await client.post("/api/v1/session", json={"token": VIEWER})
        cookies = dict(client.cookies)
    async with second.client("", cookies=cookies) as client:
        answer = await client.get("/api/v1/jobs")

    assert answer.status_code == 200


async def test_on_loopback_without_tokens_everybody_is_operator(start: Start) -> None:
    served = await start(authenticator=AllowAll())

    async with served.client("") as client:
        answer = await client.get("/api/v1/session")

    assert answer.json()["role"] == "operator"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://["])
async def test_foreign_pages_can_not_write(start: Start, origin: str) -> None:
    served = await start(authenticator=AllowAll())

    async with served.client("", headers={"Origin": origin}) as client:
        answer = await client.post("/api/v1/session", json={"token": "any"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_the_own_page_and_listed_origins_can_write(start: Start) -> None:
    served = await start(authenticator=AllowAll(), allowed_origins=["https://ops.example"])

    for origin in (served.url, "https://ops.example"):
        async with served.client("", headers={"Origin": origin}) as client:
            assert (await client.post("/api/v1/session", json={"token": "any"})).status_code == 200


async def test_the_page_is_framed_by_itself_and_listed_origins_alone(start: Start) -> None:
    served = await start(authenticator=AllowAll(), allowed_origins=["https://ops.example"])

    async with served.client("") as client:
        policy = (await client.get("/api/v1/session")).headers["Content-Security-Policy"]

    assert policy.split("; ")[-1] == "frame-ancestors 'self' https://ops.example"


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost", 200), ("scope.example", 200)])
async def test_a_name_that_is_not_ours_is_refused(start: Start, host: str, status: int) -> None:
    served = await start(authenticator=AllowAll(), allowed_hosts=["scope.example"])

    async with served.client("", headers={"Host": f"{host}:{served.gateway.port}"}) as client:
        assert (await client.get("/api/v1/jobs")).status_code == status


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [("", {}, 401), ("wrong", {}, 401), (VIEWER, {"Origin": "http://evil.example"}, 403)],
)
async def test_events_are_for_those_who_may_see_them(
    served: Served, token: str, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with served.listen(token, headers=headers):
            pass

    assert refused.value.response.status_code == status
    assert b'"error"' in refused.value.response.body


async def test_events_accept_a_sessions_cookie(served: Served) -> None:
    headers = {"Cookie": await cookie(served), "Origin": served.url}

    async with served.listen("", headers=headers) as socket:
        assert '"snapshot"' in await socket.recv()


async def test_events_end_with_the_session(start: Start) -> None:
    served = await start(session_seconds=1)

    async with served.listen("", headers={"Cookie": await cookie(served)}) as socket:
        await socket.recv()
        with pytest.raises(ConnectionClosed):
            await next_event(socket, "nothing more")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nope", 404, "not_found"),
        ("POST", "/api/nope", 404, "not_found"),
        ("GET", "/api/v1/jobs/none", 404, "not_found"),
        ("GET", "/api/v1/findings/none", 404, "not_found"),
        ("DELETE", "/api/v1/jobs", 404, "not_found"),
        ("GET", "/api/v1/findings?state=maybe", 422, "invalid_request"),
        ("POST", "/api/v1/session", 422, "invalid_request"),
    ],
)
async def test_every_refusal_has_one_shape(served: Served, method: str, path: str, status: int, code: str) -> None:
    async with served.client(headers={"Accept": "text/html"}) as client:
        answer = await client.request(method, path)

    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"code", "message", "hint"}
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_refused(start: Start, announced: bool) -> None:
    served = await start(max_request_bytes=2048)

    async def pieces():
        for _ in range(4):
            yield b"x" * 1024

    async with served.client() as client:
        answer = await client.post("/api/v1/session", content=b"x" * 4096 if announced else pieces())

    assert answer.status_code == 413
    assert answer.json()["error"]["hint"]


async def test_a_failure_inside_gives_nothing_away(start: Start) -> None:
    class Broken(AllowAll):
        async def reader(self, token: str) -> Role:
            raise RuntimeError("secret detail")

    served = await start(authenticator=Broken())

    with capture_logs() as logged:
        async with served.client() as client:
            answer = await client.get("/api/v1/jobs")

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text
    assert [entry["path"] for entry in logged if entry["event"] == "request_failed"] == ["/api/v1/jobs"]


async def test_tokens_do_not_reach_the_log(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    link = served.gateway.links.new(Role.OPERATOR)

    async with served.client("") as client:
        await client.get("/", params={"token": link})
        await client.get("/", params={"token": "used-or-guessed"})
        await client.post("/api/v1/session", json={"token": OPERATOR})
        await client.post("/api/v1/session", json={"token": ["not", "text", "secret-in-list"]})
        await client.post("/api/v1/session", content=b"{secret-in-list")

    written = "".join(capfd.readouterr())
    assert not any(secret in written for secret in (link, "used-or-guessed", OPERATOR, "secret-in-list"))


async def cookie(served: Served) -> str:
    """A session's cookie as a browser would send it."""
    async with served.client("") as client:
        await client.post("/api/v1/session", json={"token": VIEWER})
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())
