"""--nan-policy: a step whose loss is no number is left out, or gone back from, alike on all ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

BROKEN = "--train-step tests.support.own_steps:Broken --train-step-kwargs"
ONE_MICROBATCH = f"{TINY} --global-batch-size 2"


def reported(flags: str, world_size: int = 1) -> list[float | None]:
    return [report.loss for report in run_forked(world_size, train, flags)[-1].steps]


def broken(*steps: int) -> str:
    return f'{BROKEN} {{"at":[{",".join(map(str, steps))}]}}'


def test_a_skipped_step_changes_no_weight_and_is_not_in_the_log() -> None:
    losses = reported(f"{ONE_MICROBATCH} --train-iters 4 --nan-policy skip {broken(2)}")

    assert losses[1] is None
    assert [loss for loss in losses if loss is not None and math.isfinite(loss)] == losses[:1] + losses[2:]


@pytest.mark.long
def test_ranks_of_other_stages_skip_it_too() -> None:
    flags = f"{ONE_MICROBATCH} --train-iters 4 --nan-policy skip {broken(2)}"

    split = reported(f"{flags} --pipeline-model-parallel-size 2", 2)

    assert split[1] is None
    assert split[::2] == pytest.approx(reported(flags)[::2], abs=1e-5)


def test_a_rollback_takes_the_newest_checkpoints_weights_and_later_data(tmp_path: Path) -> None:
    saving = f"--save-interval 1 --save {tmp_path / 'one'}"
    skipped = reported(f"{ONE_MICROBATCH} --train-iters 4 --nan-policy skip {broken(3)}")

    back = reported(f"{ONE_MICROBATCH} --train-iters 4 --nan-policy rollback {broken(3)} {saving}")

    assert back == skipped, "the checkpoint before the broken step has the weights that skipping keeps"


def test_a_rollback_without_a_checkpoint_says_what_to_give() -> None:
    with pytest.raises(RankFailedError, match="rollback found no checkpoint: give --save"):
        reported(f"{ONE_MICROBATCH} --train-iters 3 --nan-policy rollback {broken(1)}")


def test_too_many_in_a_row_end_the_run() -> None:
    with pytest.raises(RankFailedError, match="in 10 steps in a row, the last one 10: lower --lr"):
        reported(f"{ONE_MICROBATCH} --train-iters 20 --nan-policy skip {broken(*range(1, 21))}")
