"""A model that Megatron-LM itself trained and saved, evaluated by both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.convert.main import main
from tests.support.attached import run
from tests.support.forked import run_forked
from tests.support.pretrain import FLAGS
from tests.support.training import train

ON_CPU = Path(__file__).parents[3] / "support" / "megatron_lm_on_cpu.py"
SIZES = "--seq-length 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 2 --eval-iters 1 --seed 1234"
MODEL = "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 16 --eval-interval 4"
LLAMA = (
    "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --group-query-attention "
    "--num-query-groups 2 --untie-embeddings-and-output-weights"
)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (LLAMA, "--tensor-model-parallel-size 2 --ckpt-format torch"),
        (LLAMA, "--tensor-model-parallel-size 2 --ckpt-format torch_dist"),
        ("", "--pipeline-model-parallel-size 2 --ckpt-format torch"),
    ],
)
def test_both_find_the_same_losses(
    model: str, layout: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    megatron_lm = shared_data / "megatron_lm"
    theirs = run(
        ON_CPU,
        megatron_lm / "pretrain_gpt.py",
        *f"{FLAGS} {MODEL} {SIZES} {model} {layout} --distributed-backend gloo".split(),
        *("--save", tmp_path / "theirs", "--save-interval", "1000000", "--data-cache-path", tmp_path / "cache"),
        environment={"PYTHONPATH": str(megatron_lm), "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        timeout=420.0,
    )
    assert theirs.code == 0, theirs.output
    wanted = [float(loss) for loss in re.findall(r"validation loss at .*lm loss value: (\S+)", theirs.output)]

    assert main(["megatron-to-core", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0, capsys.readouterr().err

    flags = f"{SIZES} --lr 1e-3 --mock-data --num-workers 0 --skip-train --use-checkpoint-args --finetune"
    (found,) = run_forked(1, train, f"{flags} --load {tmp_path / 'ours'}")
    assert len(wanted) == 2
    assert [each.loss for each in found.evaluations] == pytest.approx(wanted, rel=1e-6)
