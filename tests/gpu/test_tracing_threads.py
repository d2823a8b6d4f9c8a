"""Of a rank on a GPU that traces each step in full, with NCCL's records: no thread of tracing takes the interpreter's
lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.devices import needs
from tests.integration.trainer.plugins.scan.traced import run_traced
from tests.support.watched_threads import STEPS, WatchedThreads, train_watched

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


@pytest.mark.parametrize("world", [pytest.param(1, marks=needs(1)), pytest.param(2, marks=needs(2))])
def test_no_thread_of_tracing_takes_the_interpreters_lock(world: int, tmp_path: Path) -> None:
    seen = run_traced(world, train_watched, f"--bf16 --trace-dir {tmp_path}", timeout=170.0)

    print(seen)
    assert seen == [WatchedThreads(1, 0, (), STEPS)] * world
