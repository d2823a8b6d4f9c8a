"""What tracing leaves in the training process under plain torchrun: no thread of Python, no gRPC, no protobuf, no
pydantic; and nobody there but the training thread needs the interpreter's lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.agent.rendezvous import SOCKET_VARIABLE
from tests.integration.trainer.plugins.scan.traced import read, run_traced
from tests.support.training import TINY
from tests.support.watched_threads import STEPS, WatchedThreads, train_watched

PATIENCE_SECONDS = 60.0
SCRIPT = """
import json, os, sys, threading
from pathlib import Path
import megatronapp.trainer.launch  # before a plug-in, as main does
from megatronapp.trainer.main import main
from megatronapp.trainer.plugins.scan.plugin import ScanPlugin

seen = {}
step_end = ScanPlugin.step_end
def watched(self, step, progress):
    step_end(self, step, progress)
    seen["threads"] = sorted(thread.name for thread in threading.enumerate())
ScanPlugin.step_end = watched

folder = Path(sys.argv[1])
code = main(sys.argv[2:])
heavy = ("grpc", "google.protobuf", "pydantic", "megatronapp.v1")
seen["modules"] = sorted(name for name in sys.modules if name.startswith(heavy))
(folder / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))
sys.exit(code)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_rank_under_plain_torchrun_traces_without_threads_and_heavy_modules(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    flags = f"{TINY} --train-iters 4 --pipeline-model-parallel-size 2 --trace --trace-dir {tmp_path / 'trace'}"
    environment = {name: value for name, value in os.environ.items() if name != SOCKET_VARIABLE}

    subprocess.run(
        [*torchrun, str(script), str(tmp_path), *flags.split()],
        env=environment | {"OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=280,
    )

    for rank in (0, 1):
        seen = json.loads((tmp_path / f"seen-{rank}.json").read_text())
        assert seen == {"threads": ["MainThread"], "modules": []}
        trace = closed(trace_file.path_for(tmp_path / "trace", "local/train", 1, rank))
        assert [summary.step for summary in read(trace).summaries] == [1, 2, 3, 4]


@pytest.mark.parametrize("world", [1, 2])
def test_no_thread_of_tracing_takes_the_interpreters_lock(world: int, tmp_path: Path) -> None:
    pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

    seen = run_traced(world, train_watched, f"--trace-dir {tmp_path}")

    assert seen == [WatchedThreads(1, 0, (), STEPS)] * world


def closed(path: Path) -> Path:
    """The file, once the agent has written the last heartbeat: it may outlive the ranks by a moment."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (path.exists() and any(beat.closing for beat in read(path).heartbeats)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path
