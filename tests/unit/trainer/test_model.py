"""megatron-core's configuration: the silent traps are avoided, and sizes are as documented."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments, model
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.models import family_of, sizes

NEEDED = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3 --global-batch-size 32"
)
VIRTUAL = "--num-layers-per-virtual-pipeline-stage 1"


def transformer(flags: str, world: int = 1, device: str = "cpu"):
    config, _ = arguments.parse(f"{NEEDED} {flags}".split())
    return model.transformer_config(config, Layout.of(config, world), torch.device(device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("overlap", ["", "--no-overlap-p2p-communication"])
def test_two_interleaved_stages_never_batch_their_messages(overlap: str, device: str) -> None:
    found = transformer(f"--pipeline-model-parallel-size 2 {VIRTUAL} {overlap}", 2, device)

    assert not found.batch_p2p_comm
    assert found.overlap_p2p_comm == (not overlap)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_outputs_on_their_way_are_not_freed(device: str) -> None:
    overlapped = transformer(f"--pipeline-model-parallel-size 4 {VIRTUAL}", 4, device)
    waited = transformer(f"--pipeline-model-parallel-size 4 {VIRTUAL} --no-overlap-p2p-communication", 4, device)

    assert not overlapped.deallocate_pipeline_outputs
    assert waited.deallocate_pipeline_outputs
    assert waited.batch_p2p_comm


def test_alltoall_between_experts_is_refused_on_cpus() -> None:
    with pytest.raises(UsageError, match="alltoall needs GPUs"):
        transformer("--num-experts 2 --disable-bias-linear --moe-token-dispatcher-type alltoall")


@pytest.mark.parametrize(
    ("flags", "gated", "formula"),
    [
        ("", False, lambda x: F.gelu(x)),
        ("--openai-gelu", False, lambda x: F.gelu(x, approximate="tanh")),
        ("--swiglu", True, lambda x: x * x.sigmoid()),
        ("--geglu", True, lambda x: F.gelu(x)),
        ("--geglu --openai-gelu", True, lambda x: F.gelu(x, approximate="tanh")),
        ("--squared-relu", False, lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_the_mlp_computes_the_activation_that_is_asked_for(flags: str, gated: bool, formula: Any) -> None:
    found, values = transformer(flags), torch.linspace(-3, 3, 13)

    assert found.gated_linear_unit == gated
    assert torch.allclose(found.activation_func(values), formula(values), atol=1e-6)


def test_shared_experts_count_among_parameters_and_operations() -> None:
    plain, shared = (
        arguments.parse(f"{NEEDED} --num-experts 4 --disable-bias-linear {flags}".split())[0].model
        for flags in ("", "--moe-shared-expert-intermediate-size 32")
    )

    assert sizes.mlp_parameters(shared) - sizes.mlp_parameters(plain) == 2 * 64 * 32
    assert sizes.mlp_flops(shared, 10) - sizes.mlp_flops(plain, 10) == 2 * 10 * 64 * 32 * 2


@pytest.mark.parametrize(("size", "padded"), [(257, 384), (384, 384), (50257, 50304)])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_the_padded_vocabulary_is_the_same_in_every_layout(size: int, padded: int, tensor: int) -> None:
    config, _ = arguments.parse(f"{NEEDED} --tensor-model-parallel-size {tensor}".split())

    assert model.padded_vocabulary(size, config.model, Layout.of(config, tensor)) == padded


def stand_in_for_transformer_engine(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """For what is decided before any of it is called."""
    stand_in = ModuleType("transformer_engine")
    stand_in.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformer_engine", stand_in)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", ModuleType("transformer_engine.pytorch"))
    monkeypatch.setattr("megatron.core.utils._te_version", None)


FP8 = (
    "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --fp8-margin 1 --fp8-amax-history-len 1024 "
    "--fp8-amax-compute-algo max --no-fp8-wgrad --transformer-impl transformer_engine"
)


def test_flags_of_8_bit_training_reach_megatron_core_where_transformer_engine_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in_for_transformer_engine(monkeypatch, "2.4.0")

    found = transformer(FP8)

    assert (found.fp8, found.fp8_recipe, found.fp8_margin) == ("hybrid", "tensorwise", 1)
    assert (found.fp8_amax_history_len, found.fp8_amax_compute_algo, found.fp8_wgrad) == (1024, "max", False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--attention-backend flash", "needs the package flash-attn: install it, or take --attention-backend auto"),
        (f"{FP8} --seq-length 100", "multiples of 16, and --micro-batch-size times --seq-length is 200 on a rank"),
        (f"{FP8} --hidden-size 72", "and --hidden-size is 72 on a rank: change it, or leave --fp8-format out"),
        (f"{FP8} --ffn-hidden-size 72", "and --ffn-hidden-size is 72 on a rank"),
    ],
)
def test_what_transformer_engine_can_not_do_is_refused_in_one_line(
    flags: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformer_engine(monkeypatch, "2.4.0")

    with pytest.raises(UsageError, match=said):
        transformer(f"--transformer-impl transformer_engine {flags}")


@pytest.mark.parametrize("recipe", ["mxfp8", "blockwise", "tensorwise"])
def test_a_recipe_that_the_device_does_not_know_is_refused_with_the_reason(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformer_engine(monkeypatch, "2.4.0")
    fp8 = ModuleType("transformer_engine.pytorch.fp8")
    for name in ("check_fp8_support", "check_mxfp8_support", "check_fp8_block_scaling_support"):
        setattr(fp8, name, lambda name=name: (False, f"{name} says no."))
    monkeypatch.setattr(sys.modules["transformer_engine.pytorch"], "fp8", fp8, raising=False)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", fp8)

    checked = {"mxfp8": "check_mxfp8_support", "blockwise": "check_fp8_block_scaling_support"}
    said = f"--fp8-recipe {recipe} does not run here: {checked.get(recipe, 'check_fp8_support')} says no: take another"
    with pytest.raises(UsageError, match=said):
        transformer(f"{FP8} --fp8-recipe {recipe}", device="cuda")


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="Transformer Engine is installed")
def test_8_bit_training_asks_for_transformer_engine_where_it_is_not() -> None:
    with pytest.raises(UsageError, match="needs Transformer Engine, which is not installed: install it"):
        transformer(FP8)


def test_a_transformer_engine_that_is_too_old_is_refused_with_the_version_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in_for_transformer_engine(monkeypatch, "1.5.0")

    with pytest.raises(UsageError, match=r"Transformer Engine 1\.5\.0 is too old: install 2\.0 or newer"):
        transformer("--transformer-impl transformer_engine")


def test_parameters_and_operations_of_a_known_model() -> None:
    """GPT-2 small: 124 M parameters; six operations per parameter and token, and those of attention."""
    flags = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024"
    config, _ = arguments.parse(f"{flags} --train-iters 1 --micro-batch-size 1 --lr 1".split())
    family = family_of(config.model)

    parameters = family.parameters(config.model, 50257, 1024)
    operations = family.flops_per_sequence(config, 50257)

    matrices = parameters - 1024 * 768
    assert parameters == pytest.approx(124.4e6, rel=0.01)
    assert operations == pytest.approx(6 * matrices * 1024 + 3 * 12 * 2 * 1024 * 1024 * 768)
