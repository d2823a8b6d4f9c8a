"""Which fused kernels a run takes, and what is said of those that it can't have."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.models.fusions import check_fusions, chosen

NEEDED = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --train-iters 1 --micro-batch-size 1 --seq-length 8"


def config(flags: str) -> TrainerConfig:
    return arguments.parse(f"{NEEDED} --lr 1e-3 {flags}".split())[0]


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        ("", set()),
        ("--fusions bias-dropout", {"bias-dropout"}),
        ("--swiglu --bf16 --fusions megatron", {"bias-swiglu", "bias-dropout"}),
        ("--swiglu --bf16 --fusions megatron cross-entropy", {"bias-swiglu", "bias-dropout", "cross-entropy"}),
        ("--openai-gelu --fusions megatron", {"bias-gelu", "bias-dropout"}),
        ("--geglu --openai-gelu --fusions megatron", {"bias-geglu", "bias-dropout"}),
        ("--squared-relu --openai-gelu --fusions megatron", {"bias-dropout"}),
        ("--fusions megatron", {"bias-dropout"}),
    ],
)
def test_what_is_asked_for_is_taken(flags: str, taken: set[str]) -> None:
    check_fusions(config(flags))

    assert chosen(config(flags)) == taken


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--fusions swiglu", "there are megatron, bias-gelu"),
        ("--fusions bias-gelu", "give --openai-gelu"),
        ("--openai-gelu --disable-bias-linear --fusions bias-gelu", "leave --swiglu, --geglu"),
        ("--fusions bias-geglu", "give --geglu"),
        ("--geglu --fusions bias-geglu", "give --openai-gelu"),
        ("--fusions bias-swiglu", "give --swiglu"),
        ("--fusions cross-entropy", "give --bf16"),
        ("--fusions rope", "--position-embedding-type rope"),
        ("--position-embedding-type rope --fusions rope", "transformer_engine"),
        ("--fusions gradient-accumulation", "fused_weight_gradient_mlp_cuda of Apex, which is not installed"),
        ("--fusions masked-softmax", "scaled_upper_triang_masked_softmax_cuda of Apex"),
        ("--attention-backend flash --fusions masked-softmax", "--attention-backend local"),
    ],
)
def test_what_can_not_be_had_is_refused_with_the_way_out(flags: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_fusions(config(flags))
