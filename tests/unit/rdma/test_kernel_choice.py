"""Which kind of copy the shared-memory lane prefers, where chunks cost what a test says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "native/rdma"
NEAR = (6500, 10_000)
"""Nanoseconds of a chunk by cached and by streaming stores, where the cores share a cache; and where they don't."""
FAR = (15_000, 5000)

Shares = Callable[..., list[float]]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Shares:
    """Of each phase the share of bytes that streaming stores moved."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("choice") / "choice"
    sources = [ROOT / "tests/choice/main.cpp", ROOT / "src/lanes/choice.cpp"]
    subprocess.run(["c++", "-std=c++17", "-O1", f"-I{ROOT / 'src'}", *sources, "-o", program], check=True)

    def run(*phases: tuple[int, int, int], noise: float = 0.02) -> list[float]:
        costs = [str(number) for phase in phases for number in phase]
        told = subprocess.run([program, str(noise), *costs], capture_output=True, text=True, check=True)
        return [float(line) for line in told.stdout.split()]

    return run


def test_near_cores_use_cached_stores_and_try_the_other_seldom(streamed: Shares) -> None:
    assert streamed((20_000, *NEAR)) < [0.02]


def test_far_cores_are_noticed_within_a_few_chunks(streamed: Shares) -> None:
    assert streamed((60, *FAR), (20_000, *FAR)) > [0.5, 0.99]


def test_ranks_that_are_moved_to_other_cores_change_over(streamed: Shares) -> None:
    shares = streamed((2000, *NEAR), (2000, *FAR), (2000, *NEAR))

    assert shares[0] < 0.02
    assert shares[1] > 0.9
    assert shares[2] < 0.15


def test_threads_that_are_interrupted_change_nothing(streamed: Shares) -> None:
    assert streamed((20_000, *NEAR), noise=0.1) < [0.05]


def test_messages_from_another_cache_change_nothing(streamed: Shares) -> None:
    small, large = (64, 3000, 5500), (256, 6500, 10_000)

    assert max(streamed(*[small, large] * 50)) < 0.1
