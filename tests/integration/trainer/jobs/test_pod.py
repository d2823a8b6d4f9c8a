"""The launcher as a pod's first process: SIGTERM reaches the ranks, and exit codes reach Kubernetes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatronapp.trainer.jobs.torchrun import PEERS_SECONDS

WITHIN_SECONDS = 2.0
"""Of a death, that it is told."""
ENDING_SECONDS = 8.0
"""Of the launcher itself: its agent sends what is left."""

SAVE = """
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def save(*_):
    (folder / f"saved-{os.environ['RANK']}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
(folder / f"ready-{os.environ['RANK']}").touch()
time.sleep(120)
"""


def launched(script: Path, *arguments: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
    ranks = ["--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0"]
    command = [sys.executable, "-m", "megatronapp.trainer.jobs.pod", *ranks, str(script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)


@pytest.mark.timeout(180)
def test_sigterm_lets_the_ranks_save_and_says_that_the_work_is_not_done(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SAVE)
    process = launched(script, str(tmp_path))
    end = time.monotonic() + 120
    while len(list(tmp_path.glob("ready-*"))) < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.1)

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 143
    assert len(list(tmp_path.glob("saved-*"))) == 2


@pytest.mark.timeout(180)
def test_a_ranks_exit_code_is_the_pods(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)")

    assert launched(script).wait(120) == 7


@pytest.mark.timeout(180)
def test_a_rank_that_is_killed_is_named_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun would tell of its own choice
    script = tmp_path / "rank.py"
    script.write_text("import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(60)")

    launcher = launched(script, stderr=subprocess.PIPE)

    _, said = launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert said.decode().splitlines() == ["error: rank 1 was ended by SIGKILL"]


STUCK = """
import os, sys, time
from pathlib import Path
from tests.support.stuck import stuck
rank, folder = os.environ["RANK"], Path(sys.argv[1])
if rank == "0":
    (folder / "ready").touch()
    stuck()
while not (folder / "ready").exists():
    time.sleep(0.01)
time.sleep(0.2)
(folder / "died").write_text(str(time.time()))
os.kill(os.getpid(), 9)
"""


@pytest.mark.timeout(180)
def test_a_rank_that_hears_no_signal_is_ended_when_another_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    script = tmp_path / "rank.py"
    script.write_text(STUCK)
    launcher = launched(script, str(tmp_path), stderr=subprocess.PIPE)
    assert launcher.stderr is not None

    line, told_at = launcher.stderr.readline(), time.time()
    code, ended_at = launcher.wait(60), time.time()

    died_at = float((tmp_path / "died").read_text())
    assert line == b"error: rank 1 was ended by SIGKILL\n"
    assert told_at - died_at < WITHIN_SECONDS
    assert code == 128 + signal.SIGKILL
    assert ended_at - died_at < PEERS_SECONDS + ENDING_SECONDS
