"""Flags of Megatron-LM, and habits around a run: each changes the run as it says, alike on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import run_forked
from tests.support.training import TINY, Recording, train

pytestmark = pytest.mark.long


def run(flags: str, world_size: int = 1) -> Recording:
    return run_forked(world_size, train, f"{TINY} {flags}")[-1]


def _watch_overflow(flags: str) -> list[tuple[bool, float, bool]]:
    """Of each step on this rank: was it taken, the scale after it, and did a weight change."""
    from megatronapp.trainer.plugins.base import Plugin

    seen: list[tuple[bool, float, bool]] = []

    class Watch(Plugin):
        name = "watch"

        def models(self, chunks: Sequence[torch.nn.Module]) -> None:
            self._weights = [parameter for chunk in chunks for parameter in chunk.parameters()]

        def optimizer(self, step: Any) -> Any:
            def watched() -> Any:
                before = [weight.detach().clone() for weight in self._weights]
                outcome = step()
                changed = any(not torch.equal(a, b) for a, b in zip(before, self._weights, strict=True))
                seen.append((outcome[0], float(step.__self__.get_loss_scale()), changed))
                return outcome

            return watched

        @classmethod
        def create(cls, args: Any, context: Any) -> Watch:
            return cls()

    train(flags, plugins=(Watch,))
    return seen


@pytest.mark.parametrize(
    "layout",
    ["--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", "--use-distributed-optimizer"],
)
def test_an_overflow_lowers_the_scale_and_skips_the_same_step_on_all_ranks(layout: str) -> None:
    flags = f"{TINY} {layout} --fp16 --train-iters 16 --initial-loss-scale {2.0**30} --hysteresis 1"

    ranks = run_forked(2, _watch_overflow, flags)

    assert ranks[0] == ranks[1]
    steps = ranks[0]
    assert not steps[0][0]
    assert any(taken for taken, _, _ in steps)
    scale = 2.0**30
    for taken, after, changed in steps:
        scale = scale if taken else scale / 2
        assert after == scale
        assert changed == taken


def test_float16_learns_like_float32() -> None:
    found = run("--fp16 --initial-loss-scale 1024 --train-iters 20").losses

    assert found == pytest.approx(run("--train-iters 20").losses, rel=2e-2)
    assert found[-1] < found[0]


def test_a_growing_batch_has_the_same_losses_in_another_layout() -> None:
    flags = "--rampup-batch-size 4 4 24 --global-batch-size 16 --micro-batch-size 2 --train-iters 10"

    one = run(flags)
    two = run(flags, 2)

    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert one.losses != pytest.approx(run("--global-batch-size 16 --train-iters 10").losses, rel=1e-5)


def test_weighing_tokens_alike_changes_nothing_where_microbatches_have_equally_many() -> None:
    assert run("--calculate-per-token-loss --train-iters 10", 2).losses == pytest.approx(
        run("--train-iters 10").losses, rel=1e-5
    )


def test_a_run_that_ends_by_exit_interval_goes_on_with_the_models_flags_of_its_checkpoint(tmp_path: Path) -> None:
    rotary = "--use-rotary-position-embeddings --no-position-embedding"
    whole = run(f"{rotary} --train-iters 8")
    first = run(f"{rotary} --train-iters 8 --exit-interval 5 --save {tmp_path} --load {tmp_path}")
    bare = TINY.replace("--num-layers 4 --hidden-size 32 --num-attention-heads 4", "--use-checkpoint-args")

    [second] = run_forked(1, train, f"{bare} --train-iters 8 --save {tmp_path}")

    assert [report.step for report in first.steps] == [1, 2, 3, 4, 5]
    assert first.losses + second.losses == whole.losses


def test_skip_train_evaluates_alone(tmp_path: Path) -> None:
    flags = f"--train-iters 4 --save {tmp_path}"
    trained = run(f"{flags} --eval-iters 2 --eval-interval 4")

    found = run(f"{flags} --eval-iters 2 --skip-train")

    assert found.steps == []
    assert [(each.split, each.loss) for each in found.evaluations] == [
        (each.split, each.loss) for each in trained.evaluations
    ]


def test_exit_duration_ends_the_run_on_all_ranks(tmp_path: Path) -> None:
    recording = run(f"--train-iters 100000 --exit-duration-in-mins 0.01 --save {tmp_path}", 2)

    assert 0 < len(recording.steps) < 100000
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == str(recording.steps[-1].step)


def test_a_loss_that_does_not_fall_ends_the_run_on_all_ranks() -> None:
    flags = "--pipeline-model-parallel-size 2 --train-iters 1000 --lr 1e-12 --weight-decay 0 --eval-iters 1"

    recording = run(f"{flags} --eval-interval 3 --early-stop-patience 2 --log-interval 1", 2)

    losses = [each.loss for each in recording.evaluations]
    assert recording.steps[-1].step < 1000
    assert all(loss >= min(losses[:-2]) for loss in losses[-2:])


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run(f"--train-iters 5 --save {tmp_path} --save-interval 1 --keep-last 2")

    assert sorted(path.name for path in tmp_path.iterdir() if "iter_" in path.name and path.is_dir()) == [
        "iter_0000004",
        "iter_0000005",
    ]
    assert run(f"--train-iters 6 --save {tmp_path}").steps[0].step == 6
