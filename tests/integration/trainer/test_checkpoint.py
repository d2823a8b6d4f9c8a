"""Checkpoints: exact resume, another layout, torn files and stale writers."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from megatronapp.core.errors import DataError, NotFoundError, TrainingError, UsageError
from megatronapp.trainer import checkpoint_folder, launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.checkpoint_folder import Claim
from tests.support.forked import RankFailedError, run_forked
from tests.support.fused_adam import take_transformer_engines_adam
from tests.support.training import TINY, train

EXPERTS = "--num-experts 4 --disable-bias-linear"
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"


def losses(flags: str, world_size: int = 1, environment: dict[str, str] | None = None) -> list[float]:
    return run_forked(world_size, train, f"{TINY} {flags}", environment=environment, timeout=110)[-1].losses


@cache
def uninterrupted(flags: str, world_size: int, steps: int) -> list[float]:
    return losses(f"--train-iters {steps} {flags}", world_size)


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (1, f"{DROPOUT} --lr-decay-style cosine --lr-decay-iters 8 --lr-warmup-iters 2"),
        pytest.param(
            2,
            f"{DROPOUT} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            marks=pytest.mark.long,
        ),
        pytest.param(
            1,
            "--bf16 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000",
            marks=pytest.mark.long,
        ),
        (2, "--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
        (1, "--bf16 --optimizer-cpu-offload --optimizer-offload-fraction 0.5"),
        pytest.param(2, "--bf16 --optimizer-cpu-offload --use-distributed-optimizer", marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one(
    world_size: int, flags: str, tmp_path: Path
) -> None:
    losses(f"--train-iters 3 {flags} --save {tmp_path}", world_size)

    resumed = losses(f"--train-iters 6 {flags} --save {tmp_path}", world_size)

    assert resumed == uninterrupted(flags, world_size, 6)[3:]
    assert (tmp_path / checkpoint_folder.LATEST).read_text() == "6"


def events_and_losses(arguments: str) -> tuple[list[str], list[float]]:
    """For a rank: what it logs, and its losses."""
    with capture_logs() as logs:
        result = train(arguments)
    return [entry["event"] for entry in logs], result.losses


def test_a_run_whose_checkpoint_is_at_the_last_step_says_that_nothing_is_left(tmp_path: Path) -> None:
    flags = f"{TINY} --train-iters 1 --save {tmp_path}"

    ((first, _),) = run_forked(1, events_and_losses, flags)
    ((again, losses_again),) = run_forked(1, events_and_losses, flags)

    assert "nothing_left_to_train" not in first
    assert "nothing_left_to_train" in again
    assert losses_again == []


@pytest.fixture(scope="module")
def saved_by_a_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of PP 2 x DP 2 with the distributed optimizer."""
    folder = tmp_path_factory.mktemp("pipeline")
    losses(
        f"--train-iters 3 --pipeline-model-parallel-size 2 --use-distributed-optimizer --save {folder}", world_size=4
    )
    return folder


@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        (1, ""),
        pytest.param(2, "--tensor-model-parallel-size 2", marks=pytest.mark.long),
        pytest.param(2, "", marks=pytest.mark.long),
        (2, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
    ],
)
def test_a_checkpoint_loads_under_another_layout(world_size: int, layout: str, saved_by_a_pipeline: Path) -> None:
    found = losses(
        f"--train-iters 6 --use-distributed-optimizer {layout} --load {saved_by_a_pipeline}", world_size=world_size
    )

    assert found == pytest.approx(uninterrupted("", 1, 6)[3:], rel=1e-5)


def test_weights_alone_start_a_new_run_at_step_one(saved_by_a_pipeline: Path) -> None:
    found = losses(f"--train-iters 1 --finetune --load {saved_by_a_pipeline}")

    assert found[0] < uninterrupted("", 1, 6)[0]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("saved", "now", "world_size"),
    [
        ("--bf16 --use-distributed-optimizer", "--bf16 --pipeline-model-parallel-size 2", 2),
        pytest.param("--bf16", "--bf16 --use-distributed-optimizer", 2, marks=pytest.mark.long),
        pytest.param("--swiglu", "--swiglu --use-distributed-optimizer", 2, marks=pytest.mark.long),
        pytest.param(
            "--fp16 --initial-loss-scale 4096 --use-distributed-optimizer",
            "--fp16 --tensor-model-parallel-size 2",
            2,
            marks=pytest.mark.long,
        ),
        pytest.param(f"{EXPERTS} --use-distributed-optimizer", f"{EXPERTS}", 1, marks=pytest.mark.long),
        pytest.param("--bf16", "--bf16 --use-distributed-optimizer --optimizer-cpu-offload", 2, marks=pytest.mark.long),
        pytest.param("--optimizer-cpu-offload", "", 1, marks=pytest.mark.long),
    ],
)
def test_a_checkpoint_loads_with_and_without_the_distributed_optimizer(
    saved: str, now: str, world_size: int, tmp_path: Path
) -> None:
    losses(f"--train-iters 3 {saved} --save {tmp_path}", world_size)

    found = losses(f"--train-iters 6 {now} --save {tmp_path}", world_size)

    assert found == pytest.approx(
        losses(f"--train-iters 6 {saved}", world_size)[3:], rel=1e-5 if "16" not in now else 2e-3
    )


ADAMS = {"torch": "", "Transformer Engine": "", "torch beside Transformer Engine": "--optimizer-cpu-offload"}
DISTRIBUTED = "--bf16 --use-distributed-optimizer"


@pytest.mark.parametrize(("saved", "now"), [pair for pair in product(ADAMS, ADAMS) if set(pair) != {"torch"}])
@pytest.mark.parametrize(
    ("flags", "other_flags"),
    [
        ("", ""),
        (DISTRIBUTED, DISTRIBUTED),
        *(
            pytest.param(*flags, marks=pytest.mark.long)
            for flags in [("--bf16", "--bf16"), ("--bf16", DISTRIBUTED), (EXPERTS, EXPERTS)]
        ),
    ],
)
def test_a_checkpoint_of_one_adam_goes_on_with_another(
    saved: str, now: str, flags: str, other_flags: str, tmp_path: Path
) -> None:
    run_forked(1, losses_with, saved, f"--train-iters 3 {flags} --save {tmp_path}")

    found = run_forked(1, losses_with, now, f"--train-iters 6 {other_flags} --save {tmp_path}")[0]

    assert found == pytest.approx(uninterrupted(flags, 1, 6)[3:], rel=1e-5 if "16" not in flags else 2e-3)


def losses_with(adam: str, flags: str) -> list[float]:
    if adam != "torch":
        take_transformer_engines_adam()
    return train(f"{TINY} {flags} {ADAMS[adam]}").losses


GROUPED = "--moe-grouped-gemm --expert-model-parallel-size 2 --use-distributed-optimizer"


@pytest.mark.parametrize(
    ("saved", "saved_by", "now", "now_by"),
    [("", 1, GROUPED, 2), pytest.param(GROUPED, 2, "", 1, marks=pytest.mark.long)],
)
def test_a_checkpoint_loads_with_and_without_grouped_experts(
    saved: str, saved_by: int, now: str, now_by: int, tmp_path: Path
) -> None:
    model = f"{EXPERTS} --swiglu"
    losses(f"--train-iters 3 {model} {saved} --save {tmp_path}", saved_by)

    found = losses(f"--train-iters 6 {model} {now} --save {tmp_path}", now_by)

    assert found == pytest.approx(uninterrupted(model, 1, 6)[3:], rel=1e-5)


ROPE = "--position-embedding-type rope"


@cache
def saved_with(flags: str, folder: Path) -> Path:
    losses(f"--train-iters 1 {flags} --save {folder}")
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize(
    ("name", "saved", "now", "said"),
    [
        (
            "rope",
            ROPE,
            f"{ROPE} --rotary-base 500000 --norm-epsilon 0.1",
            "--rotary-base 10000, not 500000; --norm-epsilon 1e-05, not 0.1: give the same model",
        ),
        ("rope", ROPE, f"{ROPE} --rotary-percent 0.5", "--rotary-percent 1.0, not 0.5"),
        (
            "rope",
            ROPE,
            f"{ROPE} --hidden-size 64 --hidden-dropout 0.5",
            "--hidden-size 32, not 64; --hidden-dropout 0.0",
        ),
        ("experts", EXPERTS, f"{EXPERTS} --moe-router-topk 1", "--moe-router-topk 2, not 1"),
        (
            "null",
            "--tokenizer-type NullTokenizer --vocab-size 256",
            "--tokenizer-type ByteTokenizer",
            "--tokenizer-type NullTokenizer, not ByteTokenizer",
        ),
    ],
)
@pytest.mark.parametrize(
    "how", ["--save", *(pytest.param(how, marks=pytest.mark.long) for how in ("--load", "--finetune --load"))]
)
def test_another_model_is_refused_before_any_step(
    how: str, name: str, saved: str, now: str, said: str, checkpoints: Path
) -> None:
    folder = saved_with(saved, checkpoints / name)
    before = sorted(folder.iterdir())

    with pytest.raises(RankFailedError, match=f"UsageError: .*was saved with {said}"):
        losses(f"--train-iters 2 {now} {how} {folder}")

    assert sorted(folder.iterdir()) == before


def test_every_rank_refuses_another_model(checkpoints: Path) -> None:
    folder = saved_with(ROPE, checkpoints / "rope")

    said = run_forked(2, refusal, f"{TINY} --train-iters 2 {ROPE} --norm-epsilon 0.1 --load {folder}", timeout=110)

    assert said[0] == said[1]
    assert "--norm-epsilon 1e-05, not 0.1" in said[0]


def refusal(flags: str) -> str:
    with pytest.raises(UsageError) as refused:
        train(flags)
    return str(refused.value)


def without_recipe(folder: Path) -> None:
    """Make of the newest checkpoint what earlier versions wrote: no recipe, the shape among the common state."""
    path = folder / checkpoint_folder.folder_name(checkpoint_folder.find_latest(folder) or 0)
    saved = json.loads((path / checkpoint_folder.RECIPE).read_text())
    (path / checkpoint_folder.RECIPE).unlink()
    common = torch.load(path / "common.pt", weights_only=False)
    names = ("num_layers", "hidden_size", "num_attention_heads", "group_query_attention", "position_embedding_type")
    names += ("disable_bias_linear", "num_experts", "normalization", "swiglu", "kv_channels")
    forward = saved["settings"]["forward"]
    common["shape"] = {name: forward[name] for name in names}
    common["shape"] |= {"max_position_embeddings": 16, "vocab_size": saved["tokenizer"]["vocab_size"]}
    torch.save(common, path / "common.pt")
    files = {file.name: file.stat().st_size for file in path.iterdir() if file.name != checkpoint_folder.COMPLETE}
    (path / checkpoint_folder.COMPLETE).write_text(json.dumps({"step": 3, "attempt": 1, "files": files}))


def test_a_checkpoint_of_an_earlier_version_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    losses(f"--train-iters 3 --save {tmp_path}")
    without_recipe(tmp_path)

    with pytest.raises(RankFailedError, match=r"UsageError: .*--swiglu off, not on"):
        losses(f"--train-iters 6 --swiglu --save {tmp_path}")
    resumed = losses(f"--train-iters 6 --save {tmp_path}")

    assert resumed == uninterrupted("", 1, 6)[3:]


def test_a_stale_attempt_does_not_start_beside_a_newer_one(tmp_path: Path) -> None:
    newer = {"MEGATRONAPP_RUN_ID": "r", "MEGATRONAPP_ATTEMPT": "2"}
    losses(f"--train-iters 1 --save {tmp_path}", environment=newer)

    with pytest.raises(RankFailedError, match="attempt 1 of run r must not write"):
        losses(f"--train-iters 2 --save {tmp_path}", environment={**newer, "MEGATRONAPP_ATTEMPT": "1"})

    assert checkpoint_folder.find_latest(tmp_path) == 1


# ---- files alone


def write_checkpoint(folder: Path, step: int) -> Path:
    """A complete checkpoint as far as its files go."""
    path = folder / checkpoint_folder.folder_name(step)
    path.mkdir(parents=True)
    (path / "data.distcp").write_bytes(b"weights")
    (path / checkpoint_folder.COMPLETE).write_text(
        json.dumps({"step": step, "attempt": 1, "files": {"data.distcp": 7}})
    )
    (folder / checkpoint_folder.LATEST).write_text(str(step))
    return path


def test_an_empty_folder_has_no_latest_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_folder.find_latest(tmp_path) is None


@pytest.mark.parametrize("damage", ["cut", "missing", "no list of files", "garbled list of files"])
def test_a_torn_checkpoint_is_passed_over(damage: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    torn = write_checkpoint(tmp_path, 20)
    match damage:
        case "cut":
            (torn / "data.distcp").write_bytes(b"wei")
        case "missing":
            (torn / "data.distcp").unlink()
        case "no list of files":
            (torn / checkpoint_folder.COMPLETE).unlink()
        case _:
            (torn / checkpoint_folder.COMPLETE).write_text("{")

    assert checkpoint_folder.find_latest(tmp_path) == 10


def test_a_folder_of_torn_checkpoints_only_is_refused(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, 10) / "data.distcp").unlink()

    with pytest.raises(DataError, match="no complete checkpoint"):
        checkpoint_folder.find_latest(tmp_path)


def test_a_garbled_tracker_does_not_lose_the_checkpoints(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    (tmp_path / checkpoint_folder.LATEST).write_text("\x00\x00")

    assert checkpoint_folder.find_latest(tmp_path) == 10


def test_a_half_written_folder_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    (tmp_path / ".iter_0000020.partial").mkdir()

    assert checkpoint_folder.find_latest(tmp_path) == 10


def test_a_writer_whose_folder_was_claimed_by_a_newer_attempt_is_refused(tmp_path: Path) -> None:
    stale = Claim(tmp_path, "run", 1)
    stale.take()
    Claim(tmp_path, "run", 2).take()

    with pytest.raises(TrainingError, match="attempt 2 of run run holds it"):
        stale.check()


def test_a_new_run_takes_over_the_folder_of_an_old_one(tmp_path: Path) -> None:
    Claim(tmp_path, "old", 3).take()
    fresh = Claim(tmp_path, "new", 1)

    fresh.take()

    fresh.check()
    with pytest.raises(TrainingError):
        Claim(tmp_path, "old", 3).check()


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=NotFoundError.__name__):
        losses(f"--train-iters 1 --load {tmp_path}")
