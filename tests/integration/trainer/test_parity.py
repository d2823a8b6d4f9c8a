"""Every layout trains the same model: losses over 20 steps equal those of one process, in float32 with Adam. `make
test` compares the first few of them."""

from __future__ import annotations

from functools import cache

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import run_forked
from tests.support.marks import briefly
from tests.support.training import TINY, train

STEPS = 20
FEW = 5
RELATIVE = 1e-5

slower = pytest.mark.long
"""Layouts that differ from another one here in one thing alone."""

LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
SHARDED = "--use-distributed-optimizer"
INTERLEAVED = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
OF_T5 = "--geglu --openai-gelu --normalization RMSNorm --disable-bias-linear"
WHOLE = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"
MIXTURE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"


def losses(flags: str, world_size: int = 1, steps: int = STEPS) -> list[float]:
    recordings = run_forked(world_size, train, f"{TINY} --train-iters {steps} {flags}")
    return recordings[-1].losses


@cache
def single(flags: str = "", steps: int = STEPS) -> list[float]:
    return losses(flags, steps=steps)


@pytest.mark.parametrize(
    ("world_size", "layout", "steps"),
    briefly(
        [
            pytest.param(2, "--pipeline-model-parallel-size 2", marks=slower),
            pytest.param(2, "--tensor-model-parallel-size 2", marks=slower),
            pytest.param(2, "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
            pytest.param(2, "--use-distributed-optimizer", marks=slower),
            (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 10000"),
            (2, INTERLEAVED),
            pytest.param(
                2,
                f"{INTERLEAVED} --no-overlap-p2p-communication",
                marks=slower,
            ),
            pytest.param(
                4,
                "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --overlap-grad-reduce",
                marks=slower,
            ),
            (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
            pytest.param(4, WHOLE, marks=slower),
            pytest.param(3, "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2", marks=slower),
            (2, "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 1"),
        ],
        FEW,
        STEPS,
    ),
)
def test_layout_has_the_losses_of_one_process(world_size: int, layout: str, steps: int) -> None:
    expected = single(steps=steps)

    found = losses(layout, world_size, steps)

    assert len(found) == steps
    assert found == pytest.approx(expected, rel=RELATIVE)


@slower
def test_stages_of_other_sizes_with_virtual_stages_have_the_losses_of_one_process() -> None:
    layers = "--num-layers 6"
    flags = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"

    found = losses(f"{layers} {flags} --decoder-first-pipeline-num-layers 4", 2)

    assert found == pytest.approx(single(layers), rel=RELATIVE)


@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        pytest.param(2, "--tensor-model-parallel-size 2", marks=slower),
        pytest.param(2, "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
        pytest.param(2, "--pipeline-model-parallel-size 2", marks=slower),
        pytest.param(2, INTERLEAVED, marks=slower),
        pytest.param(2, SHARDED, marks=slower),
        pytest.param(4, WHOLE, marks=slower),
    ],
)
def test_gated_untied_rotary_model_is_the_same_in_every_layout(world_size: int, layout: str) -> None:
    assert losses(f"{LLAMA} {layout}", world_size) == pytest.approx(single(LLAMA), rel=RELATIVE)


@pytest.mark.parametrize(
    ("model", "layout", "steps"),
    briefly(
        [
            (OF_T5, "--tensor-model-parallel-size 2 --sequence-parallel"),
            pytest.param("--geglu", "--tensor-model-parallel-size 2", marks=slower),
            pytest.param(OF_T5, "--pipeline-model-parallel-size 2", marks=slower),
            pytest.param("--squared-relu", "--tensor-model-parallel-size 2", marks=slower),
            pytest.param("--squared-relu", "--use-distributed-optimizer", marks=slower),
        ],
        FEW,
        STEPS,
    ),
)
def test_other_activations_are_the_same_in_every_layout(model: str, layout: str, steps: int) -> None:
    assert losses(f"{model} {layout}", 2, steps) == pytest.approx(single(model, steps), rel=RELATIVE)


@slower
@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        (2, "--expert-model-parallel-size 2"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--pipeline-model-parallel-size 2"),
        (4, f"--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 {SHARDED}"),
    ],
)
def test_shared_experts_have_the_losses_of_one_process(world_size: int, layout: str) -> None:
    model = f"{MIXTURE} --swiglu --moe-shared-expert-intermediate-size 64"

    assert losses(f"{model} {layout}", world_size) == pytest.approx(single(model), rel=RELATIVE)


@pytest.mark.parametrize(
    ("layout", "steps"),
    briefly(
        [
            pytest.param("--expert-model-parallel-size 2", marks=slower),
            ("--expert-model-parallel-size 2 --use-distributed-optimizer",),
        ],
        FEW,
        STEPS,
    ),
)
def test_experts_over_two_ranks_have_the_losses_of_one_process(layout: str, steps: int) -> None:
    assert losses(f"{MIXTURE} {layout}", 2, steps) == pytest.approx(single(MIXTURE, steps), rel=RELATIVE)


@pytest.mark.parametrize(
    ("world_size", "model", "layout", "steps"),
    briefly(
        [
            (1, "", ""),
            (2, "", f"--expert-model-parallel-size 2 {SHARDED}"),
            (2, "", f"{SHARDED} --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 5000"),
            pytest.param(2, "--swiglu", "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
            pytest.param(1, "--bf16", "", marks=slower),
            pytest.param(2, "--squared-relu", "--pipeline-model-parallel-size 2", marks=slower),
            pytest.param(
                1,
                "--swiglu",
                "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
                marks=slower,
            ),
            pytest.param(
                4,
                "--swiglu --moe-shared-expert-intermediate-size 64",
                f"--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 {SHARDED}",
                marks=slower,
            ),
        ],
        FEW,
        STEPS,
    ),
)
def test_experts_in_one_kernel_have_the_losses_of_a_product_each(
    world_size: int, model: str, layout: str, steps: int
) -> None:
    found = losses(f"{MIXTURE} {model} {layout} --moe-grouped-gemm", world_size, steps)

    assert found == pytest.approx(single(f"{MIXTURE} {model}".rstrip(), steps), rel=RELATIVE)


@pytest.mark.parametrize(
    ("recompute", "steps"),
    briefly(
        [
            pytest.param("--recompute-granularity selective", marks=slower),
            ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",),
            ("--recompute-granularity full --recompute-method block --recompute-num-layers 2",),
        ],
        FEW,
        STEPS,
    ),
)
def test_recomputation_changes_no_loss_even_with_dropout(recompute: str, steps: int) -> None:
    dropout = "--hidden-dropout 0.1 --attention-dropout 0.1"

    assert losses(f"{dropout} {recompute}", steps=steps) == single(dropout, steps)


@pytest.mark.parametrize(
    ("world_size", "layout", "steps"),
    briefly(
        [
            (1, ""),
            pytest.param(2, "--pipeline-model-parallel-size 2", marks=slower),
            pytest.param(2, "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
        ],
        FEW,
        STEPS,
    ),
)
def test_activations_that_wait_on_the_host_change_no_loss_even_with_dropout(
    world_size: int, layout: str, steps: int
) -> None:
    flags = f"{layout} --hidden-dropout 0.1 --attention-dropout 0.1"

    assert losses(f"{flags} --cpu-offloading-num-layers 3", world_size, steps) == losses(flags, world_size, steps)


@pytest.mark.parametrize(
    ("world_size", "flags", "steps"),
    briefly(
        [
            (1, "--optimizer-offload-fraction 0.5"),
            pytest.param(2, "--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce", marks=slower),
            pytest.param(2, "--bf16 --pipeline-model-parallel-size 2", marks=slower),
            pytest.param(2, "--bf16 --use-distributed-optimizer", marks=slower),
        ],
        FEW,
        STEPS,
    ),
)
def test_an_optimizer_on_the_host_changes_no_loss(world_size: int, flags: str, steps: int) -> None:
    tolerance = 1e-3 if "--bf16" in flags else 1e-5

    assert losses(f"{flags} --optimizer-cpu-offload", world_size, steps) == pytest.approx(
        losses(flags, world_size, steps), rel=tolerance
    )


def test_an_optimizer_on_the_host_is_torchs_beside_transformer_engines() -> None:
    flags = f"{TINY} --train-iters {FEW} --optimizer-cpu-offload"

    assert run_forked(1, _with_another_adam, flags)[0] == losses("--optimizer-cpu-offload", 1, FEW)


def _with_another_adam(flags: str) -> list[float]:
    """As megatron-core is where Transformer Engine is installed."""
    from megatron.core import optimizer

    optimizer.USING_PYTORCH_OPTIMIZER, optimizer.Adam = False, None
    return train(flags).losses


@slower
def test_bfloat16_with_distributed_optimizer_and_pipeline_learns_like_one_process() -> None:
    found = losses("--bf16 --use-distributed-optimizer --pipeline-model-parallel-size 2", 4)

    assert found == pytest.approx(single("--bf16"), rel=2e-2)
    assert found[-1] < found[0]


def test_a_run_repeats_bit_by_bit() -> None:
    assert losses("", steps=FEW) == single(steps=FEW)
