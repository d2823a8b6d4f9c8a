"""Where torch comes from: PyTorch's CPU wheels by themselves where there is no GPU and nobody has said otherwise."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of programs with what the script needs, and no nvidia-smi."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("grep", "sh"):
        (folder / name).symlink_to(f"/bin/{name}")
    return folder


def flags(tools: Path, cpu_index: str, **environment: str) -> tuple[str, str]:
    """What the script prints on stdout and stderr."""
    given = {
        "PATH": str(tools),
        "HOME": str(tools),
        "PIP_CONFIG_FILE": os.devnull,
        "TORCH_DEVICE": str(tools / "nvidia0"),
        "TORCH_CPU_INDEX": cpu_index,
        "TORCH_INDEX_SECONDS": "2",
    }
    command = [str(ROOT / "scripts" / "torch-index"), sys.executable]
    done = subprocess.run(command, env=given | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_a_machine_without_a_gpu_takes_the_cpu_wheels(tools: Path, index: str) -> None:
    assert flags(tools, index) == (f"--index-url {index}", "")


@pytest.mark.parametrize("with_gpu", [True, False])
def test_an_index_that_was_named_wins(tools: Path, index: str, with_gpu: bool) -> None:
    if with_gpu:
        (tools / "nvidia0").touch()

    assert flags(tools, index, TORCH_INDEX_URL="http://mine")[0] == "--index-url http://mine"


def test_a_gpu_gets_what_pip_finds(tools: Path, index: str) -> None:
    (tools / "nvidia0").touch()

    assert flags(tools, index) == ("", "")


def test_a_driver_without_a_device_file_counts_as_a_gpu(tools: Path, index: str) -> None:
    (tools / "nvidia-smi").write_text("#!/bin/sh\n")
    (tools / "nvidia-smi").chmod(0o755)

    assert flags(tools, index) == ("", "")


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"])
def test_a_pip_that_was_given_an_index_keeps_it(tools: Path, index: str, variable: str) -> None:
    assert flags(tools, index, **{variable: "http://mirror/simple"}) == ("", "")


def test_a_pip_that_is_configured_keeps_its_index(tools: Path, index: str, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://mirror/simple\n")

    assert flags(tools, index, PIP_CONFIG_FILE=str(tmp_path / "pip.conf")) == ("", "")


def test_an_index_that_does_not_answer_is_told_in_one_line(tools: Path) -> None:
    printed, told = flags(tools, "http://127.0.0.1:9/whl/cpu")

    assert printed == ""
    assert len(told.splitlines()) == 1
    assert "does not answer" in told
