"""The two commands of the README, as somebody types them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


def megatronapp(*arguments: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "megatronapp.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.always), 2])
def test_the_demo_finds_exactly_the_slow_rank(rank: int, tmp_path: Path) -> None:
    result = megatronapp("demo", "--check", "--slow-rank", str(rank), "--folder", str(tmp_path))

    verdict = json.loads(result.stdout.strip().splitlines()[-1])
    assert result.returncode == 0, result.stderr
    assert (verdict["injected"], verdict["found"], verdict["cause"]) == ([rank], [rank], "compute")
    assert verdict["detection_steps"] >= 1
    assert verdict["detection_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--slow-rank", "9"), "--slow-rank 9"),
        (("--effect", "0.5"), "--effect 0.5"),
        (("--scenario", "absent.yaml"), "absent.yaml"),
    ],
)
def test_a_wrong_flag_is_one_clear_line(arguments: tuple[str, ...], word: str) -> None:
    result = megatronapp("demo", "--check", *arguments)

    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_a_busy_port_names_the_flag(free_port: int, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        result = megatronapp("demo", "--port", str(free_port), "--folder", str(tmp_path))

    assert result.returncode == 2
    assert "--port" in result.stderr
