"""A checkpoint goes through layouts and back: nothing of it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megatronapp.trainer import checkpoint_folder, launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.engine import MegatronEngine
from megatronapp.trainer.torch_dist import StoredWeights
from tests.support.forked import run_forked
from tests.support.training import TINY, train

SHARDED = "--use-distributed-optimizer"
BUCKETS = "--overlap-grad-reduce --ddp-bucket-size 5000"
"""Of sizes that are padded."""
SAVED = f"--pipeline-model-parallel-size 2 {SHARDED}"
LAYOUTS = [
    (2, f"--tensor-model-parallel-size 2 {SHARDED}"),
    (2, f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 {SHARDED} {BUCKETS}"),
    (1, ""),
    (4, f"--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel {SHARDED}"),
    (2, "--tensor-model-parallel-size 2"),
]
MODELS = {
    "gpt": "--bf16 --swiglu --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    "experts": "--num-experts 4 --disable-bias-linear",
}


def save_again(flags: str, source: Path, target: Path) -> None:
    """Load and save: no step is made."""
    with MegatronEngine(f"{TINY} --train-iters 6 {flags} --load {source}", plugins=()) as engine:
        engine.save(target)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer state of the newest checkpoint."""
    stored = StoredWeights(checkpoint_folder.find_complete(folder))
    return {key: stored.read(key, None, tuple(each.size)) for key, each in stored.tensors.items()}


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_weights_and_optimizer_come_back_bit_for_bit(model: str, tmp_path: Path) -> None:
    run_forked(4, train, f"{TINY} --train-iters 3 {MODELS[model]} {SAVED} --save {tmp_path / '0'}", timeout=110)
    layouts = [layout for layout in LAYOUTS if model == "gpt" or "tensor" not in layout[1]] + [(4, SAVED)]
    if model == "experts":
        layouts.insert(1, (2, f"--expert-model-parallel-size 2 {SHARDED}"))

    for number, (ranks, flags) in enumerate(layouts):
        folders = tmp_path / str(number), tmp_path / str(number + 1)
        run_forked(ranks, save_again, f"{MODELS[model]} {flags}", *folders, timeout=110)

    before, after = tensors(tmp_path / "0"), tensors(tmp_path / str(len(layouts)))
    assert any(key.startswith("optimizer.") for key in before)
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
