"""MegaFBD trains as stock megatron-core does, over many layouts of both worlds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.disaggregated import Case
from tests.support.marks import some

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

STEPS = 20
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
MODERN = (
    "--swiglu --normalization RMSNorm --group-query-attention --num-query-groups 2 --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
EXPERTS = "--num-experts 4 --expert-model-parallel-size 2 --disable-bias-linear"
BUCKETS = "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000"
"""Several to a stage: each is stepped, gathered and sent for itself."""
VIRTUAL = "--num-virtual-stages-per-pipeline-rank 2"
BITWISE = {
    "TP 2, sequence parallel, dropout, a part over two forward stages": Case(
        f"{DROPOUT} --sequence-parallel", tensor=2
    ),
    "TP 2, sequence parallel, dropout, PP 3, two parts on one forward stage": Case(
        f"--num-layers 6 {DROPOUT} --sequence-parallel", tensor=2, pipeline=3, forward_pipeline=1
    ),
    "DP 2, distributed optimizer, overlapped reduction": Case(f"{BUCKETS} --global-batch-size 16", data=2),
    "PP 4, forward PP 3, dropout, untied": Case(
        f"--num-layers 8 {DROPOUT} --untie-embeddings-and-output-weights", pipeline=4, forward_pipeline=3
    ),
    "VPP 2, three slots": Case(f"{VIRTUAL} {MODERN} --fbd-slots 3", forward_pipeline=2),
    "linears, TP 2, sequence parallel, dropout, two parts on one forward stage": Case(
        f"--num-layers 6 {DROPOUT} --sequence-parallel", tensor=2, forward_pipeline=1, linears=True
    ),
    "linears, TP 2, no sequence parallel, one stage, forward PP 2": Case(
        f"{MODERN} --attention-dropout 0.1", tensor=2, pipeline=1, forward_pipeline=2, linears=True
    ),
    "linears, VPP 2, DP 2, distributed optimizer, untied, modern, forward PP 1": Case(
        f"{VIRTUAL} {MODERN} {BUCKETS} --global-batch-size 16",
        data=2,
        forward_pipeline=1,
        linears=True,
    ),
    "linears, PP 2, forward PP 3, hidden dropout, tied, three slots": Case(
        "--hidden-dropout 0.1 --fbd-slots 3", forward_pipeline=3, linears=True
    ),
    "linears, PP 4, forward PP 2, dropout, untied": Case(
        f"--num-layers 8 {DROPOUT} --untie-embeddings-and-output-weights",
        pipeline=4,
        forward_pipeline=2,
        linears=True,
    ),
    "layers, TP 2, sequence parallel, VPP 2, untied, two slots": Case(
        f"{VIRTUAL} {MODERN} --sequence-parallel --fbd-mode layers --fbd-slots 2", tensor=2, forward_pipeline=1
    ),
    "layers, one stage, forward PP 2, CP 2, distributed optimizer": Case(
        f"{BUCKETS} --fbd-mode layers", pipeline=1, context=2, forward_pipeline=2
    ),
    "linears, GeGLU in its tanh form, one stage": Case(f"--geglu --openai-gelu {DROPOUT}", pipeline=1, linears=True),
    "squared ReLU": Case("--squared-relu"),
    "DP 2, forward PP 1, roles apart": Case("--global-batch-size 16 --fbd-roles-apart", data=2, forward_pipeline=1),
    "CP 2, hidden dropout, distributed optimizer, forward PP 1": Case(
        f"{BUCKETS} --hidden-dropout 0.1", context=2, forward_pipeline=1
    ),
    "linears, CP 2, one stage, attention dropout": Case(
        f"{MODERN} --attention-dropout 0.1", pipeline=1, context=2, linears=True
    ),
    "experts over two ranks": Case(f"{EXPERTS} --global-batch-size 16", data=2),
    "experts over two context ranks, forward PP 1, distributed optimizer": Case(
        f"{EXPERTS} {BUCKETS}", context=2, forward_pipeline=1
    ),
}
CLOSE = {
    "TP 1 : 2, gated, grouped queries, sequence parallel": Case(
        f"{MODERN} --sequence-parallel", tensor=2, forward_tensor=1
    ),
    "layers, TP 1 : 2, sequence parallel": Case("--sequence-parallel --fbd-mode layers", tensor=2, forward_tensor=1),
    "TP 2 : 4, VPP 2": Case(f"{VIRTUAL} --swiglu", tensor=4, forward_tensor=2, forward_pipeline=1),
    "TP 1 : 2, a vocabulary padded to 258, which is tied": Case(
        "--padded-vocab-size 257", tensor=2, forward_tensor=1, forward_pipeline=1
    ),
    "TP 2 : 1, CP 2": Case("", context=2, forward_tensor=2, forward_pipeline=1),
    "TP 2 : 1, hidden dropout": Case("--hidden-dropout 0.1", forward_tensor=2, forward_pipeline=1),
}
IN_CI = {
    "TP 2, sequence parallel, dropout, PP 3, two parts on one forward stage",
    "PP 4, forward PP 3, dropout, untied",
    "linears, TP 2, sequence parallel, dropout, two parts on one forward stage",
    "linears, VPP 2, DP 2, distributed optimizer, untied, modern, forward PP 1",
    "TP 1 : 2, gated, grouped queries, sequence parallel",
}


@pytest.mark.parametrize("name", some(BITWISE, lambda name: name in IN_CI))
def test_losses_and_gradients_are_bitwise_stocks(name: str) -> None:
    case = BITWISE[name]
    stock = replace(case, flags=case.flags.partition("--fbd")[0]).stock(STEPS)

    chosen = case.disaggregated(STEPS)

    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(chosen[-1].losses) == STEPS


@pytest.mark.parametrize("name", some(CLOSE, lambda name: name in IN_CI))
def test_with_other_tensor_sizes_losses_are_stocks_but_for_rounding(name: str) -> None:
    case = CLOSE[name]
    stock = replace(case, flags=case.flags.partition("--fbd")[0]).stock(STEPS)

    chosen = case.disaggregated(STEPS)

    assert chosen[-1].losses == pytest.approx(stock[-1].losses, rel=1e-6)
    assert len(chosen[-1].losses) == STEPS
