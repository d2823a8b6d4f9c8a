"""MegaDPP trains bit for bit as megatron-core's schedules do, in any order: over all layouts of up to eight ranks."""

from __future__ import annotations

from itertools import product

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import run_forked
from tests.support.varied_orders import StockUnderDpp, Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

pytestmark = pytest.mark.long

DPP = "--use-dpp --dpp-policy interleaved"
VARIANTS = {
    "plain": "",
    "dropout": "--hidden-dropout 0.1 --attention-dropout 0.1",
    "recompute, untied": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
    "--untie-embeddings-and-output-weights",
}
OVERLAP = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
LAYOUTS = [each for each in product((2, 4), (1, 2), (1, 2), (1, 2)) if each[0] * each[2] * each[3] <= 8]
"""(pipeline, chunks, tensor, data)."""


def flags_of(layout: tuple[int, int, int, int], variant: str) -> str:
    pipeline, chunks, tensor, data = layout
    virtual = f"--num-virtual-stages-per-pipeline-rank {chunks}" if chunks > 1 else ""
    tensors = f"--tensor-model-parallel-size {tensor} {'--sequence-parallel' if variant == 'plain' else ''}"
    return (
        f"--num-layers 8 --global-batch-size {16 * data} --pipeline-model-parallel-size {pipeline} {virtual} "
        f"{tensors if tensor > 1 else ''} {OVERLAP if data > 1 and variant == 'plain' else ''} {VARIANTS[variant]}"
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: "PP {} × VPP {} × TP {} × DP {}".format(*each))
def test_losses_and_gradients_are_bitwise_stocks_in_every_order(
    layout: tuple[int, int, int, int], variant: str
) -> None:
    pipeline, chunks, tensor, data = layout
    ranks, flags = pipeline * tensor * data, f"{flags_of(layout, variant)} {DPP}"

    stock = run_forked(ranks, trained, flags, StockUnderDpp, timeout=400)
    chosen = run_forked(ranks, trained, flags, Varied, timeout=400)

    assert_bitwise_alike(chosen, stock, chunks)
