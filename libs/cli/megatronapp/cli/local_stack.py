"""The platform in one process: collector, detector and gateway over the memory bus."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.cli import local
from megatronapp.cli.folders import data_folder
from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core import findings_store
from megatronapp.core.auth import Role, StaticTokens
from megatronapp.core.bus import MemoryBus
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
    url: str
    """The page, with a one-time token; "" without a page."""


@asynccontextmanager
async def local_stack(options: Options) -> AsyncIterator[LocalStack]:
    """Start all services; stop them in reverse order at the end. Raises UsageError when a port is taken.

    The body is cancelled when a service's background task fails, and what it failed with is raised.
    """
    bus, registry = MemoryBus(), CollectorRegistry()
    pods, people = (SecretStr(secrets.token_urlsafe(32)) for _ in range(2))
    tokens = StaticTokens(pods=pods, operator=people)
    settings = CollectorSettings(
        host=options.host, grpc_port=options.collector_port, data_dir=options.folder / "collector", fsync=False
    )
    collector = Collector(settings, bus, registry, tokens)
    judging = DetectorSettings(quarantine_dir=options.folder / "detector/quarantine")
    findings = findings_store.connect(f"sqlite:{options.folder / FINDINGS}", None, registry, judging.findings_limits)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(findings.close)
        await _start(stack, collector)
        address = f"{options.host}:{collector.port}"
        url = ""
        if options.page_port is not None:
            url = await _start_page(stack, options, bus, registry, tokens, address, findings)
        await _start(stack, Detector(judging, bus, registry, findings))
        yield LocalStack(bus, registry, address, _write_token(options.folder, pods), url)


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
) -> str:
    """Start the gateway; returns the page's address with a token that signs in once."""
    from megatronapp.gateway.app import Gateway  # the extra `gateway` is needed only here
    from megatronapp.gateway.settings import GatewaySettings

    settings = GatewaySettings(
        host=options.host,
        port=options.page_port or 0,
        collector_addresses=(collector_address,),
        collector_token=tokens.operator,
        quarantine_dir=options.folder / "gateway/quarantine",
    )
    gateway = Gateway(settings, bus, registry, tokens, findings)
    await _start(stack, gateway)
    return f"http://{options.host}:{gateway.port}/?token={gateway.links.new(Role.OPERATOR)}"


def _write_token(folder: Path, token: SecretStr) -> Path:
    """The pods' token in a file that only this user can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pod-token"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(token.get_secret_value())
    return path


async def serve(options: Options) -> None:
    """Run the platform until SIGTERM or SIGINT, saying where it is."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with local_stack(options) as running:
        address, token = running.collector_address, running.token_file
        flags = f" --collector-address {address} --token-file {token}" if options.folder != data_folder() else ""
        with local.announced(options.folder, local.LocalPlatform(address, str(token))):
            print(f"page       {running.url}")
            print(f"collector  {address}")
            print(f"a run      megatronapp run JOB.yaml{flags}", flush=True)
            await stopping.wait()
        print("stopping")
