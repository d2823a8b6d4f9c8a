"""What a run says and keeps: schedule of the learning rate, evaluation, TensorBoard, broken disks and losses."""

from __future__ import annotations

import json
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


@pytest.mark.long
def test_wandb_has_every_value_of_the_log_without_a_network(tmp_path: Path) -> None:
    flags = f"{TINY} --train-iters 3 --eval-interval 3 --eval-iters 1 --wandb-project tiny --wandb-save-dir {tmp_path}"

    [recording] = run_forked(1, train, flags, environment={"WANDB_MODE": "offline"})

    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = history(file)
    assert [row["lm loss"] for row in rows if "lm loss" in row] == pytest.approx(recording.losses)
    assert {"learning-rate", "grad-norm", "iteration-time", "tokens-per-second", "throughput"} <= rows[0].keys()
    assert any("lm loss valid ppl" in row for row in rows)


def history(file: Path) -> list[dict[str, float]]:
    """Rows of an offline file of W&B: the format of LevelDB's log, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record, or its last part
            record = wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
            items = record.history.item
            rows += [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}] if items else []
            whole = b""
    return rows


@pytest.mark.long
def test_wandb_without_a_key_says_what_to_set(tmp_path: Path) -> None:
    alone = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9"}

    with pytest.raises(RankFailedError, match=r"W&B does not start .*: set WANDB_API_KEY, or WANDB_MODE=offline"):
        run_forked(1, train, f"{TINY} --train-iters 1 --wandb-project tiny", environment=alone)


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
