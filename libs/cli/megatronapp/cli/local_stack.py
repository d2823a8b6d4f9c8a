"""The platform in one process: collector, detector and gateway over the memory bus."""

from __future__ import annotations

import asyncio
import hmac
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.cli import local
from megatronapp.cli.folders import data_folder
from megatronapp.cli.kept_token import OPERATOR, PODS, kept_token
from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core import findings_store
from megatronapp.core.auth import Role, StaticTokens
from megatronapp.core.bus import MemoryBus
from megatronapp.core.errors import PortInUseError
from megatronapp.core.findings_store import FindingsStore
from megatronapp.core.service import Service
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings

FINDINGS = "findings.sqlite3"
"""Beside the traces, so that what was found outlives the process."""


@dataclass(frozen=True)
class Options:
    """Where the platform keeps files and listens; port 0 takes a free one, no page port: no page."""

    folder: Path
    page_port: int | None = 8080
    collector_port: int = 0
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class LocalStack:
    bus: MemoryBus
    registry: CollectorRegistry
    collector_address: str
    token_file: Path
    """Holds the token that training pods show."""
    page: str
    """The page's address; "" without a page."""
    link: str
    """The same with a one-time token, which signs in."""
    operator_token: SecretStr
    """Signs in as often as one likes, also after a restart."""
    gateway_address: str = ""
    """host:port for MegaScope's ranks; "" without a page."""


@asynccontextmanager
async def local_stack(options: Options) -> AsyncIterator[LocalStack]:
    """Start all services; stop them in reverse order at the end.

    Raises UsageError when a port is taken, or a platform runs in the folder. The folder keeps the tokens.
    The body is cancelled when a service's background task fails, and what it failed with is raised.
    """
    bus, registry = MemoryBus(), CollectorRegistry()
    async with AsyncExitStack() as stack:
        stack.enter_context(local.held(options.folder))
        pods, people = (kept_token(options.folder, name) for name in (PODS, OPERATOR))
        tokens = StaticTokens(pods=pods, operator=people)
        judging = DetectorSettings(quarantine_dir=options.folder / "detector/quarantine")
        place = f"sqlite:{options.folder / FINDINGS}"
        findings = findings_store.connect(place, None, registry, judging.findings_limits)
        stack.push_async_callback(findings.close)
        address = await _start_collector(stack, options, bus, registry, tokens)
        page, link, scope = "", "", ""
        if options.page_port is not None:
            page, link, scope = await _start_page(stack, options, bus, registry, tokens, address, findings)
        await _start(stack, Detector(judging, bus, registry, findings))
        running = LocalStack(bus, registry, address, options.folder / PODS, page, link, people, scope)
        stack.enter_context(
            local.announced(options.folder, local.LocalPlatform(address, str(running.token_file), page, scope))
        )
        yield running


async def _start_collector(
    stack: AsyncExitStack, options: Options, bus: MemoryBus, registry: CollectorRegistry, tokens: StaticTokens
) -> str:
    """Start the collector; returns its address."""
    settings = CollectorSettings(
        host=options.host, grpc_port=options.collector_port, data_dir=options.folder / "collector", fsync=False
    )
    collector = Collector(settings, bus, registry, tokens)
    try:
        await _start(stack, collector)
    except PortInUseError as error:
        raise error.chosen_by("--collector-port") from error
    return f"{options.host}:{collector.port}"


async def _start(stack: AsyncExitStack, service: Service) -> None:
    await service.start()
    stack.push_async_callback(service.stop)
    stack.enter_context(_failing_with(service.tasks))


@contextmanager
def _failing_with(tasks: Sequence[asyncio.Task[None]]) -> Iterator[None]:
    """A platform that is half alive finds nothing and says so to nobody."""
    body, failures = asyncio.current_task(), list[BaseException]()

    def ended(task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None and body is not None:
            failures.append(failure)
            body.cancel()

    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        if failures and body is not None:
            body.uncancel()
            raise failures[0] from None
        raise
    finally:
        for task in tasks:
            task.remove_done_callback(ended)


async def _start_page(
    stack: AsyncExitStack,
    options: Options,
    bus: MemoryBus,
    registry: CollectorRegistry,
    tokens: StaticTokens,
    collector_address: str,
    findings: FindingsStore,
) -> tuple[str, str, str]:
    """Start the gateway; returns the page's address, without and with a token that signs in once, and the address of
    its gRPC port."""
    from megatronapp.gateway.app import Gateway  # the extra `gateway` is needed only here
    from megatronapp.gateway.sessions import COOKIE
    from megatronapp.gateway.settings import GatewaySettings

    settings = GatewaySettings(
        host=options.host,
        port=options.page_port or 0,
        grpc_port=0,
        collector_addresses=(collector_address,),
        collector_token=tokens.operator,
        session_key=tokens.operator and _session_key(tokens.operator),
        session_cookie=f"{COOKIE}_{sha256(bytes(options.folder.resolve())).hexdigest()[:8]}",
        quarantine_dir=options.folder / "gateway/quarantine",
        scope_recordings_dir=options.folder / "gateway/recordings",
    )
    gateway = Gateway(settings, bus, registry, tokens, findings)
    await _start(stack, gateway)
    page = f"http://{options.host}:{gateway.port}/"
    return page, f"{page}?token={gateway.links.new(Role.OPERATOR)}", f"{options.host}:{gateway.grpc_port}"


def _session_key(token: SecretStr) -> SecretStr:
    """Made from the token: open tabs stay signed in over restarts, and a new token signs everybody out."""
    return SecretStr(hmac.new(token.get_secret_value().encode(), b"sessions", "sha256").hexdigest())


async def serve(options: Options) -> None:
    """Run the platform until SIGTERM or SIGINT, saying where it is."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with local_stack(options) as running:
        address, elsewhere = running.collector_address, options.folder != data_folder()
        flags = f" --collector-address {address} --token-file {running.token_file}" if elsewhere else ""
        print(f"page       {running.link}")
        print(f"token      {running.operator_token.get_secret_value()}   signs in any other browser")
        print(f"collector  {address}")
        print(f"a run      megatronapp run JOB.yaml{flags}", flush=True)
        await stopping.wait()
        print("stopping")
