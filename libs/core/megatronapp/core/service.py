"""How a service runs as a process: start, wait for a signal, stop cleanly."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from megatronapp.core import logging
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.health import HealthServer
from megatronapp.core.settings import ServiceSettings

log = logging.get_logger(__name__)


Settings = TypeVar("Settings", bound=ServiceSettings)


class Service(Protocol):
    async def start(self) -> None:
        """Return when listening. Raises UsageError when a port is taken."""

    async def stop(self) -> None:
        """Finish what was taken on, then return."""

    def ready(self) -> bool: ...

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What goes on in the background from start to stop."""


async def run(service: Service, settings: ServiceSettings, registry: CollectorRegistry) -> None:
    """Run one service with its health server until SIGTERM, SIGINT, or until its last task has ended.

    Raises what a task has failed with: a new process is better than one that is half alive.
    """
    log.info("starting", settings=settings.describe())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    health = HealthServer(settings.host, settings.http_port, registry, service.ready)
    health.start()
    try:
        await service.start()
        log.info("ready", http_port=health.port)
        await _end(service.tasks, stopping)
    finally:
        log.info("stopping")
        await service.stop()
        health.stop()


async def _end(tasks: Sequence[asyncio.Task[None]], stopping: asyncio.Event) -> None:
    """Return when told to stop or when all tasks are done; raise what the first one fails with."""
    stopped = asyncio.create_task(stopping.wait())
    running = set(tasks)
    try:
        while not stopped.done() and (running or not tasks):
            done, _ = await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & running:
                task.result()
            running -= done
    finally:
        stopped.cancel()


def load_settings(kind: type[Settings], prog: str, argv: Sequence[str] | None = None) -> Settings:
    """Settings from `--config FILE`, the environment and one flag a setting; secrets have no flag."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    for name, field in kind.model_fields.items():
        if "Secret" not in str(field.annotation):
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=field.description)
    flags = vars(parser.parse_args(argv))
    return kind.load(flags.pop("config"), **flags)


def main(
    kind: type[Settings],
    prog: str,
    serve: Callable[[Settings], Coroutine[Any, Any, None]],
    argv: Sequence[str] | None = None,
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> int:
    """A service as a program: settings, logging, `serve` until it is told to stop; returns the exit code.

    `run_loop` runs a coroutine in an event loop of its choice.
    """
    try:
        settings = load_settings(kind, prog, argv)
        logging.configure(settings.log_level, settings.log_format)
        run_loop(serve(settings))
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
