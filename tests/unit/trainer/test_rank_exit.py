"""A rank ends with its exit code, whatever PyTorch's threads do meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUSY_WORKER = """
import atexit, sys, tempfile, threading, time
from megatronapp.trainer.rank_exit import RankExit

rank_exit = RankExit()
atexit.register(print, "registered later")

import torch
import torch.distributed as dist

in_worker = threading.Event()

def takes_the_lock_again_and_again(_):
    if threading.current_thread() is not threading.main_thread():
        in_worker.set()
        while True:
            time.sleep(0.001)

def main():
    store = f"file://{tempfile.mkdtemp()}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    while not in_worker.wait(0.2):
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(500)]
        works[-1].get_future().then(takes_the_lock_again_and_again)
    print("done", end="")
    return 7

rank_exit.run(main)
"""


def ended(script: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_worker_thread_that_takes_the_interpreters_lock_does_not_abort_the_process() -> None:
    code, output, errors = ended(BUSY_WORKER)

    assert (code, output) == (7, "doneregistered later\n"), errors


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("return 0", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('error: a reason')", 1, "error: a reason\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
    ],
)
def test_the_process_ends_with_the_code_that_main_gave(end: str, code: int, said: str) -> None:
    script = (
        f"import sys\nfrom megatronapp.trainer.rank_exit import RankExit\ndef main():\n    {end}\nRankExit().run(main)"
    )

    got, output, errors = ended(script)

    assert (got, output) == (code, "")
    assert errors.endswith(said)
