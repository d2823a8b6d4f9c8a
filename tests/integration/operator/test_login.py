"""Tokens that change, over real HTTP and TLS: a server that takes one alone, files and plug-ins that have it."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from megatronapp.core.errors import ConfigError
from megatronapp.operator import login as login_module
from megatronapp.operator.api import Api, Change, RefusedError
from megatronapp.operator.login import REFRESH_SECONDS, Login
from tests.support.kubeconfig import write_kubeconfig

THING = {"metadata": {"name": "thing", "resourceVersion": "1"}}


class Server:
    """Knows whoever brings `token`."""

    def __init__(self) -> None:
        self.token = "first"
        self.refused = 0

    async def handle(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), token) != ("bearer", self.token):
            self.refused += 1
            return web.json_response({"kind": "Status", "message": "Unauthorized", "code": 401}, status=401)
        if "watch" in request.query:
            return web.Response(body=json.dumps({"type": "ADDED", "object": THING}).encode() + b"\n")
        return web.json_response(THING)

    @asynccontextmanager
    async def at(self, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Its port on loopback."""
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class PlugIn:
    """A program that says what a file has in it, and leaves a line each time it is run."""

    def __init__(self, folder: Path) -> None:
        self._answer, self._runs = folder / "answer", folder / "runs"
        self._hangs = folder / "hangs"
        self._runs.touch()
        self._program = folder / "plug-in"
        self._program.write_text(
            f"#!{sys.executable}\n"
            "from pathlib import Path\n"
            "import time\n"
            f"with Path({str(self._runs)!r}).open('a') as runs: runs.write('run\\n')\n"
            f"while Path({str(self._hangs)!r}).exists(): time.sleep(0.05)\n"
            f"print(Path({str(self._answer)!r}).read_text())\n"
        )
        self._program.chmod(0o700)

    @property
    def user(self) -> dict[str, Any]:
        api = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": api, "command": str(self._program), "interactiveMode": "Never"}}

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines())

    def gives(self, token: str, good_for: timedelta) -> None:
        until = (datetime.now(UTC) + good_for).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"token": token, "expirationTimestamp": until}
        found = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        self._answer.write_text(json.dumps(found))

    @contextmanager
    def hanging(self) -> Iterator[None]:
        self._hangs.touch()
        yield
        self._hangs.unlink()

    def fails(self) -> None:
        self._answer.unlink()


HOUR = timedelta(hours=1)
ALMOST_OVER = timedelta(minutes=1)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plug_in(tmp_path: Path) -> PlugIn:
    return PlugIn(tmp_path)


@pytest.fixture
async def port(server: Server) -> AsyncIterator[int]:
    async with server.at() as found:
        yield found


@asynccontextmanager
async def as_user(user: dict[str, Any], port: int, clock: Clock, folder: Path) -> AsyncIterator[Api]:
    config = write_kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{port}", user)
    api = Api(await Login.of_kubeconfig(config, clock))
    yield api
    await api.close()


async def test_a_plug_in_is_asked_again_only_when_its_token_is_about_to_end(
    server: Server, port: int, plug_in: PlugIn, clock: Clock, tmp_path: Path
) -> None:
    plug_in.gives("first", HOUR)

    async with as_user(plug_in.user, port, clock, tmp_path) as api:
        for _ in range(3):
            await api.get("/x")
            clock.seconds += REFRESH_SECONDS

    assert plug_in.runs == 1


async def test_a_token_that_ends_is_followed_by_the_plug_ins_next_one_before_it_is_refused(
    server: Server, port: int, plug_in: PlugIn, clock: Clock, tmp_path: Path
) -> None:
    plug_in.gives("first", ALMOST_OVER)

    async with as_user(plug_in.user, port, clock, tmp_path) as api:
        await api.get("/x")
        plug_in.gives("second", HOUR)
        server.token = "second"
        clock.seconds += REFRESH_SECONDS
        assert await api.get("/x") == THING

    assert (server.refused, plug_in.runs) == (0, 2)


async def test_a_revoked_token_is_replaced_at_once(
    server: Server, port: int, plug_in: PlugIn, clock: Clock, tmp_path: Path
) -> None:
    plug_in.gives("first", HOUR)

    async with as_user(plug_in.user, port, clock, tmp_path) as api:
        await api.get("/x")
        plug_in.gives("second", HOUR)
        server.token = "second"
        assert await api.create("/x", THING) == THING
        plug_in.gives("third", HOUR)
        server.token = "third"
        assert [event async for event in api.watch("/x", 1)] == [(Change.ADDED, THING)]

    assert (server.refused, plug_in.runs) == (2, 3)


async def test_a_plug_in_that_fails_leaves_the_token_that_there_is(
    server: Server, port: int, plug_in: PlugIn, clock: Clock, tmp_path: Path
) -> None:
    plug_in.gives("first", ALMOST_OVER)

    async with as_user(plug_in.user, port, clock, tmp_path) as api:
        plug_in.fails()
        clock.seconds += REFRESH_SECONDS
        assert await api.get("/x") == THING

        server.token = "second"
        with pytest.raises(RefusedError, match=r"who asks.*Unauthorized"):
            await api.get("/x")


async def test_a_plug_in_that_hangs_holds_no_request_up_for_long_and_is_run_once(
    server: Server, port: int, plug_in: PlugIn, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in.gives("first", ALMOST_OVER)

    async with as_user(plug_in.user, port, clock, tmp_path) as api:
        with plug_in.hanging(), monkeypatch.context() as patch:
            patch.setattr(login_module, "READ_SECONDS", 0.1)
            for _ in range(3):
                clock.seconds += REFRESH_SECONDS
                assert await api.get("/x") == THING
        plug_in.gives("second", HOUR)
        server.token = "second"
        clock.seconds += REFRESH_SECONDS
        assert await api.get("/x") == THING

    assert (server.refused, plug_in.runs) == (0, 2)


async def test_a_kubeconfigs_file_of_a_token_is_read_again(
    server: Server, port: int, clock: Clock, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")

    async with as_user({"tokenFile": str(file)}, port, clock, tmp_path) as api:
        await api.get("/x")
        file.write_text("second\n")
        server.token = "second"
        clock.seconds += REFRESH_SECONDS
        assert await api.get("/x") == THING

    assert server.refused == 0


async def test_the_server_stays_though_somebody_makes_another_context_the_current_one(
    server: Server, port: int, clock: Clock, tmp_path: Path
) -> None:
    async with as_user({"token": "first"}, port, clock, tmp_path) as api:
        config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        config["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "other"}})
        config["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:9"}})
        config["users"].append({"name": "other", "user": {"token": "others"}})
        config["users"][0]["user"]["token"] = server.token = "second"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**config, "current-context": "other"}))

        assert await api.get("/x") == THING


# ---- proxies


@pytest.mark.parametrize("named_by", ["kubeconfig", "environment"])
async def test_a_proxy_is_gone_through(
    server: Server, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    proxy = f"http://127.0.0.1:{port}"
    if named_by == "environment":
        monkeypatch.setenv("http_proxy", proxy)
    cluster = {"proxy-url": proxy} if named_by == "kubeconfig" else {}
    config = write_kubeconfig(tmp_path / "kubeconfig", "http://api.invalid", {"token": "first"}, **cluster)

    api = Api(await Login.of_kubeconfig(config))
    assert await api.get("/x") == THING
    await api.close()


async def test_no_proxy_is_gone_through_where_the_environment_says_so(
    server: Server, port: int, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    async with as_user({"token": "first"}, port, clock, tmp_path) as api:
        assert await api.get("/x") == THING


# ---- in a pod


class Pod:
    """What Kubernetes puts into each one; its server is on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificate = ["-keyout", str(folder / "key"), "-out", str(folder / "ca.crt"), "-days", "2"]
        names = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *certificate, *names]
        subprocess.run(command, check=True, capture_output=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "ca.crt", folder / "key")

    def has_token(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    async def api(self, port: int, clock: Clock) -> Api:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        return Api(await Login.of_service_account(self.folder, environ, clock))


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


async def test_a_pods_token_is_read_again_each_minute(server: Server, pod: Pod, clock: Clock) -> None:
    pod.has_token("first")

    async with server.at(pod.context) as port:
        api = await pod.api(port, clock)
        await api.get("/x")
        pod.has_token("second")
        server.token = "second"
        clock.seconds += REFRESH_SECONDS
        assert await api.get("/x") == THING
        await api.close()

    assert server.refused == 0


async def test_a_pods_token_that_is_refused_is_read_at_once(server: Server, pod: Pod, clock: Clock) -> None:
    pod.has_token("first")

    async with server.at(pod.context) as port:
        api = await pod.api(port, clock)
        await api.get("/x")
        pod.has_token("second")
        server.token = "second"
        assert await api.get("/x") == THING
        await api.close()

    assert server.refused == 1


# ---- what can't be used


async def test_without_a_kubeconfig_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set KUBECONFIG, or run this in a pod"):
        await Login.of_kubeconfig(str(tmp_path / "none"))


@pytest.mark.parametrize("text", ["", "[]", "a: [", "clusters: 5", "current-context: x", "contexts: [{}]"])
async def test_a_kubeconfig_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)

    with pytest.raises(ConfigError, match="kubeconfig"):
        await Login.of_kubeconfig(str(tmp_path / "kubeconfig"))


async def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    config = write_kubeconfig(
        tmp_path / "kubeconfig", "https://127.0.0.1:9", {"token": "x"}, **{"certificate-authority": "ca"}
    )

    with pytest.raises(ConfigError, match="certificates"):
        Api(await Login.of_kubeconfig(config))


async def test_the_check_of_the_certificate_is_not_skipped(tmp_path: Path) -> None:
    config = write_kubeconfig(
        tmp_path / "kubeconfig", "https://127.0.0.1:9", {"token": "x"}, **{"insecure-skip-tls-verify": True}
    )

    with pytest.raises(ConfigError, match="name its authority"):
        await Login.of_kubeconfig(config)
