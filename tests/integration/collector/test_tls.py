"""TLS on the collector's door: whom it lets in, whom it refuses and why, and certificates that are renewed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio
from pydantic import SecretStr

from megatronapp.core.auth import StaticTokens
from megatronapp.core.errors import ConfigError, UnavailableError
from megatronapp.core.probe import probe
from megatronapp.core.tls import (
    CA_FILE,
    CLIENT_CERTIFICATE_FILE,
    CLIENT_KEY_FILE,
    ClearTextWarning,
    ClientTls,
    open_channel,
)
from megatronapp.gateway.collector import CollectorClient
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.trainer.agent.stream import CollectorStream, StreamLoop
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import RUN, hello, identity, summary
from tests.support.certificates import Authority

TOKEN = SecretStr("a-token")
TOKENS = StaticTokens(pods=TOKEN, viewer=TOKEN)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


async def start_with_tls(
    start: Start, authority: Authority, *, mutual: bool = False, name: str = "localhost"
) -> Running:
    certificate, key = authority.certify(name, "server")
    clients = authority.ca_file if mutual else None
    return await start(TOKENS, tls_certificate_file=certificate, tls_key_file=key, tls_client_ca_file=clients)


def address_of(running: Running) -> str:
    return f"localhost:{running.collector.port}"


async def jobs_seen(running: Running, tls: ClientTls) -> int:
    """As the gateway asks."""
    client = CollectorClient(address_of(running), TOKEN, tls)
    try:
        return len(await client.jobs())
    finally:
        await client.close()


def connected(running: Running, environment: dict[str, str], token_file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A rank's stream, as the agent opens it, with one step."""
    for name, value in (environment | {"MEGATRONAPP_TOKEN_FILE": str(token_file)}).items():
        monkeypatch.setenv(name, value)
    token_file.write_text(TOKEN.get_secret_value())
    loop, access = StreamLoop(), Access.of_environment()
    stream = CollectorStream(address_of(running), lambda: hello(identity()), lambda _: None, loop, access)
    stream.put(Outgoing.of(summary(1, 1)))
    return stream, loop


async def until_sent(stream: CollectorStream, loop: StreamLoop) -> None:
    try:
        async with asyncio.timeout(20):
            while len(stream._buffer):
                await asyncio.sleep(0.05)
    finally:
        await asyncio.to_thread(stream.close, 1.0)
        await asyncio.to_thread(loop.close)


async def test_the_agent_and_the_gateway_speak_through_tls(
    start: Start, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_with_tls(start, authority)
    stream, loop = connected(running, {CA_FILE: str(authority.ca_file)}, tmp_path / "token", monkeypatch)
    await until_sent(stream, loop)

    assert await jobs_seen(running, ClientTls(str(authority.ca_file))) == 1
    await asyncio.to_thread(probe, f"grpc://{address_of(running)}")


@pytest.mark.parametrize("name", ["other.example.com", "localhost"])
async def test_a_collector_that_is_not_the_right_one_is_not_spoken_to(
    start: Start, authority: Authority, stranger: Authority, name: str
) -> None:
    running = await start_with_tls(start, authority, name=name)
    trusted = stranger if name == "localhost" else authority

    with pytest.raises(UnavailableError, match=r"certificate (is of no CA|names another host)") as refused:
        await jobs_seen(running, ClientTls(str(trusted.ca_file)))

    assert "\n" not in str(refused.value)
    assert await jobs_seen(running, ClientTls(str(authority.ca_file))) == 0 if name == "localhost" else True


async def test_the_agent_says_in_one_line_why_it_can_not_connect(
    start: Start, authority: Authority, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_with_tls(start, authority)
    with structlog.testing.capture_logs() as logs:
        stream, loop = connected(running, {CA_FILE: str(stranger.ca_file)}, tmp_path / "token", monkeypatch)
        async with asyncio.timeout(20):
            while not (told := [line for line in logs if line["event"] == "collector_unreachable"]):
                await asyncio.sleep(0.05)
        await asyncio.to_thread(stream.close, 0.1)
        await asyncio.to_thread(loop.close)

    assert told[0]["reason"] == f"the collector's certificate is of no CA in {stranger.ca_file}, or has expired"


async def test_clear_text_is_refused_where_tls_is_spoken_and_the_other_way_round(
    start: Start, authority: Authority
) -> None:
    encrypted = await start_with_tls(start, authority)

    with pytest.raises(UnavailableError):
        await jobs_seen(encrypted, ClientTls())
    await encrypted.collector.stop()
    clear = await start(TOKENS)
    with pytest.raises(UnavailableError, match=r"clear text|handshake"):
        await jobs_seen(clear, ClientTls(str(authority.ca_file)))


async def test_mutual_tls_lets_in_only_who_has_a_certificate_of_its_ca(
    start: Start, authority: Authority, stranger: Authority
) -> None:
    running = await start_with_tls(start, authority, mutual=True)
    ca = str(authority.ca_file)
    own, foreign = authority.certify("gateway", "gateway"), stranger.certify("gateway", "gateway")

    for wrong in (ClientTls(ca), ClientTls(ca, *map(str, foreign))):
        with pytest.raises(UnavailableError, match="asks for certificates") as refused:
            await jobs_seen(running, wrong)
        assert "\n" not in str(refused.value)

    assert await jobs_seen(running, ClientTls(ca, *map(str, own))) == 0


async def test_the_agent_shows_its_certificate(
    start: Start, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_with_tls(start, authority, mutual=True)
    certificate, key = map(str, authority.certify("rank", "rank"))
    given = {CA_FILE: str(authority.ca_file), CLIENT_CERTIFICATE_FILE: certificate, CLIENT_KEY_FILE: key}
    stream, loop = connected(running, given, tmp_path / "token", monkeypatch)
    await until_sent(stream, loop)


async def test_renewed_certificates_are_taken_without_a_restart(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running = await start_with_tls(start, authority, mutual=True)
    own = tuple(map(str, authority.certify("gateway", "gateway")))
    tls = ClientTls(str(authority.ca_file), *own)
    client = CollectorClient(address_of(running), TOKEN, tls)
    assert len(await client.jobs()) == 0

    # Another CA takes over: all files are replaced where they lie, the server's by one that was half written at first.
    successor = Authority(tmp_path / "successor")
    server = successor.certify("localhost", "server")
    folder = authority.ca_file.parent
    (folder / "server.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    assert await jobs_seen(running, tls) == 0
    for file, content in (("server.key", server[1]), ("server.crt", server[0]), ("ca.crt", successor.ca_file)):
        (folder / file).write_bytes(content.read_bytes())
    for file, issued in zip(("gateway.crt", "gateway.key"), successor.certify("gateway", "gateway"), strict=True):
        (folder / file).write_bytes(issued.read_bytes())

    assert len(await client.jobs()) == 0
    await client.close()
    old_authority_file = tmp_path / "old-ca.crt"
    authority._ca.cert_pem.write_to_path(str(old_authority_file))
    with pytest.raises(UnavailableError):
        await jobs_seen(running, ClientTls(str(old_authority_file), *own))


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"tls_certificate_file": "server.crt"}, "tls_key_file"),
        ({"tls_client_ca_file": "ca.crt"}, "tls_certificate_file"),
        ({"tls_certificate_file": "nothing.crt", "tls_key_file": "server.key"}, "nothing.crt can't be read"),
        ({"tls_certificate_file": "ca.crt", "tls_key_file": "server.key"}, "no certificate and its key"),
        ({"tls_certificate_file": "server.key", "tls_key_file": "server.key"}, "no certificate and its key"),
    ],
)
async def test_what_can_not_be_used_is_said_at_the_start(
    start: Start, authority: Authority, given: dict[str, str], wrong: str
) -> None:
    authority.certify("localhost", "server")
    folder = authority.ca_file.parent

    with pytest.raises(ConfigError, match=wrong):
        await start(TOKENS, **{name: folder / file for name, file in given.items()})


async def test_a_proxy_of_the_environment_is_gone_through_unless_it_is_told_not_to(
    start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_with_tls(start, authority)
    asked: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An HTTP proxy that connects wherever it is asked to."""
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", running.collector.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
            target.close()

        await asyncio.gather(pump(reader, onward), pump(onward_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("no_proxy", "")
    tls = ClientTls(str(authority.ca_file))

    assert await jobs_seen(running, tls) == 0
    assert asked == [f"CONNECT localhost:{running.collector.port} HTTP/1.1"]

    monkeypatch.setenv("no_proxy", "localhost")
    assert await jobs_seen(running, tls) == 0
    assert len(asked) == 1
    proxy.close()


def test_a_token_in_clear_text_is_told_of_once_for_each_address() -> None:
    warning, another = ClearTextWarning(), ClearTextWarning("A_SETTING")
    with structlog.testing.capture_logs() as logs:
        for address in ("collector.example.com:7601", "collector.example.com:7601", "127.0.0.1:7601", "localhost:7601"):
            warning.warn(address, ClientTls())
        warning.warn("other.example.com:7601", ClientTls("ca.crt"))
        another.warn("collector.example.com:7601", ClientTls())

    assert [(line["event"], line["address"]) for line in logs] == [
        ("token_in_clear_text", "collector.example.com:7601")
    ] * 2
    assert logs[1]["help"].startswith("set A_SETTING")


async def test_a_token_is_asked_for_behind_tls_as_well(start: Start, authority: Authority) -> None:
    running = await start_with_tls(start, authority)
    async with open_channel(address_of(running), ClientTls(str(authority.ca_file))) as channel:
        stub: Any = trace_pb2_grpc.TraceQueryStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.ListRanks(trace_pb2.ListRanksRequest(run=RUN), timeout=10)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
