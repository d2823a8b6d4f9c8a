"""Checkpoints that are written while training goes on: the same content, and one lost at most."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatronapp.trainer import checkpoint_folder, checkpoint_verify, launch  # noqa: F401  (imported before the forks)
from tests.integration.trainer.test_run import train_on_a_small_disk
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"


@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        (1, ""),
        pytest.param(
            2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", marks=pytest.mark.long
        ),
    ],
)
def test_a_run_resumed_from_one_has_exactly_the_losses_of_an_uninterrupted_one(
    world_size: int, layout: str, tmp_path: Path
) -> None:
    flags = f"{TINY} {DROPOUT} {layout}"
    saving = f"--async-save --save-interval 1 --save {tmp_path}"
    whole = run_forked(world_size, train, f"{flags} --train-iters 6")[-1].losses

    first = run_forked(world_size, train, f"{flags} --train-iters 3 {saving}")[-1].losses
    resumed = run_forked(world_size, train, f"{flags} --train-iters 6 {saving}")[-1].losses

    assert first + resumed == whole
    assert sorted(folder.name for folder in tmp_path.glob("*iter_*")) == [f"iter_000000{step}" for step in range(1, 7)]
    assert [list(checkpoint_verify.faults(folder)) for folder in tmp_path.glob("iter_*")] == [[]] * 6


def test_a_full_disk_is_said_and_leaves_the_checkpoints_before_it_whole(tmp_path: Path) -> None:
    run_forked(1, train, f"{TINY} --train-iters 1 --save {tmp_path}")

    with pytest.raises(RankFailedError, match="checkpoint of step 2 could not be written"):
        run_forked(1, train_on_a_small_disk, f"{TINY} --train-iters 2 --async-save --save {tmp_path}")

    assert checkpoint_folder.find_latest(tmp_path) == 1


class Run:
    """A training process of its own, and what it has logged."""

    def __init__(self, flags: str, log: Path) -> None:
        self._log = log
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "megatronapp.trainer", *flags.split()],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def losses(self) -> dict[int, float]:
        found = {}
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == "step":
                found[entry["step"]] = entry["loss"]
        return found

    def kill_after(self, steps: int, seconds: float) -> None:
        while self.process.poll() is None and len(self.losses()) < steps:
            time.sleep(0.01)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_a_kill_at_any_moment_loses_one_checkpoint_at_most(rounds: int, tmp_path: Path) -> None:
    draw = random.Random(21)
    flags = f"{TINY} {DROPOUT} --train-iters {6 * rounds}"
    whole = run_forked(1, train, flags)[0].losses
    saving = f"{flags} --async-save --save-interval 1 --keep-last 3 --save {tmp_path / 'checkpoints'}"

    for index in range(rounds):
        run = Run(saving, tmp_path / f"{index}.log")
        run.kill_after(draw.randint(2, 5), draw.random() * 0.1)
        losses = run.losses()
        found = checkpoint_folder.find_latest(tmp_path / "checkpoints")

        assert losses
        assert all(loss == whole[step - 1] for step, loss in losses.items())
        assert found is not None
        assert found >= max(losses) - 2, "the one before the newest step's was being written"

    last = Run(saving, tmp_path / "last.log")
    assert last.process.wait() == 0
    assert last.losses()[6 * rounds] == whole[-1]
