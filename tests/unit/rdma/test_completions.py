"""What has ended is printed or waited for, in whatever order, and what nobody announces is looked for often enough."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "native/rdma"
COUNT = 200_000
"""To look for each among all would take minutes."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("completions") / "completions"
    sources = [ROOT / "tests/completions/main.cpp", ROOT / "src/core/completions.cpp"]
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT}"]
    subprocess.run(["c++", "-std=c++17", "-O1", *includes, *sources, "-o", program], check=True)
    run = subprocess.run([program, str(COUNT)], capture_output=True, text=True, check=True, timeout=20)
    return [int(line) for line in run.stdout.split()]


def test_what_was_waited_for_is_not_told(printed: list[int]) -> None:
    assert printed[:3] == [2, 3, 0]


def test_after_idling_it_is_noticed_within_a_small_share_of_that_time(printed: list[int]) -> None:
    pauses = dict(zip((2_000_000, 6_000_000, 60_000_000, 1_000_000_000), printed[3:7], strict=True))

    assert all(pause <= idle / 50 for idle, pause in pauses.items())
    assert all(20_000 <= pause <= 1_000_000 for pause in pauses.values())


def test_streams_that_have_waited_are_forgotten_though_nobody_asks_for_them(printed: list[int]) -> None:
    assert printed[7:] == [1]
