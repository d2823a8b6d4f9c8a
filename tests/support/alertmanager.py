"""A real Alertmanager and a real Prometheus on free loopback ports."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml


@contextmanager
def alertmanager(config: dict[str, Any], port: int, folder: Path) -> Iterator[httpx.Client]:
    """Alertmanager with this configuration; asked through the client."""
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    arguments = [
        "--config.file", str(file), "--storage.path", str(folder / "data"), "--cluster.listen-address=",
        "--web.listen-address", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with _server("prometheus-alertmanager", arguments, port, "/-/ready") as client:
        yield client


@contextmanager
def prometheus(config: dict[str, Any], port: int, folder: Path) -> Iterator[httpx.Client]:
    """Prometheus with this configuration."""
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    arguments = [
        "--config.file", str(file), "--storage.tsdb.path", str(folder / "data"),
        "--web.listen-address", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with _server("prometheus", arguments, port, "/-/ready") as client:
        yield client


@contextmanager
def _server(name: str, arguments: list[str], port: int, ready: str) -> Iterator[httpx.Client]:
    program = shutil.which(name)
    assert program, f"{name} is not installed; run: make setup-system"
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
            _await(client, ready, name)
            yield client
    finally:
        process.terminate()
        process.wait(10)


def _await(client: httpx.Client, path: str, name: str) -> None:
    for _ in range(300):
        try:
            if client.get(path).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{name} did not start")
