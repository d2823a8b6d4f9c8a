"""What a run says and keeps: schedule of the learning rate, evaluation, TensorBoard, broken disks and losses."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from megatronapp.trainer import checkpoint_folder, launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, Recording, train


def run(flags: str) -> Recording:
    return run_forked(1, train, f"{TINY} {flags}")[0]


def test_learning_rate_warms_up_and_decays() -> None:
    recording = run("--train-iters 6 --lr-decay-style linear --lr-warmup-iters 2 --lr-decay-iters 6 --min-lr 2e-4")

    rates = [report.learning_rate for report in recording.steps]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 8e-4, 6e-4, 4e-4])


def test_a_line_of_the_log_is_the_mean_since_the_line_before() -> None:
    each = run("--train-iters 4")
    grouped = run("--train-iters 4 --log-interval 2")

    assert [report.step for report in grouped.steps] == [2, 4]
    assert grouped.losses == pytest.approx([sum(each.losses[:2]) / 2, sum(each.losses[2:]) / 2], rel=1e-6)
    assert all(report.tokens_per_second > 0 and report.tflops_per_gpu > 0 for report in grouped.steps)


def test_evaluation_changes_nothing_in_training() -> None:
    dropout = "--train-iters 4 --hidden-dropout 0.1"
    evaluated = run(f"{dropout} --eval-interval 2 --eval-iters 2")

    assert evaluated.losses == run(dropout).losses
    assert [(report.step, report.split) for report in evaluated.evaluations] == [
        (2, "valid"),
        (4, "valid"),
        (4, "test"),
    ]


def test_tensorboard_has_every_value_of_the_log(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recording = run(f"--train-iters 3 --tensorboard-dir {tmp_path}")

    events = EventAccumulator(str(tmp_path)).Reload()
    assert [scalar.value for scalar in events.Scalars("lm loss")] == pytest.approx(recording.losses)
    assert {"learning-rate", "grad-norm", "iteration-time", "tokens-per-second", "throughput"} <= set(
        events.Tags()["scalars"]
    )


def test_a_loss_that_is_no_number_ends_the_run_and_says_what_to_do() -> None:
    with pytest.raises(RankFailedError, match=r"the loss is (nan|inf) at step \d+: lower --lr"):
        run("--train-iters 30 --lr 1e9 --clip-grad 0 --optimizer sgd")


def train_on_a_small_disk(flags: str) -> None:
    """No file may grow past 64 KiB: writing the weights fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    train(flags)


def test_a_full_disk_is_said_and_leaves_the_checkpoints_before_it_whole(tmp_path: Path) -> None:
    run(f"--train-iters 1 --save {tmp_path}")

    with pytest.raises(RankFailedError, match="checkpoint of step 2 could not be written"):
        run_forked(1, train_on_a_small_disk, f"{TINY} --train-iters 2 --save {tmp_path}")

    assert checkpoint_folder.find_latest(tmp_path) == 1
