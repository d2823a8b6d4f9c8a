"""A run goes on from a checkpoint with MegaFBD, without it, and with it again, bit for bit as if it had never ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.disaggregated import Case

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
CASES = {
    "input, tied, forward PP 1": Case(DROPOUT, forward_pipeline=1),
    "linears, one stage": Case(DROPOUT, pipeline=1, linears=True),
    "linears, VPP 2, DP 2, distributed optimizer, untied": Case(
        "--num-virtual-stages-per-pipeline-rank 2 --use-distributed-optimizer --overlap-grad-reduce "
        "--ddp-bucket-size 5000 --untie-embeddings-and-output-weights --global-batch-size 16",
        data=2,
        forward_pipeline=1,
        linears=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_with_and_without_it_bit_for_bit(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    kept = replace(case, flags=f"{case.flags} --save {tmp_path}")
    whole = case.stock(6)

    parts = [kept.disaggregated(2), kept.stock(4), kept.disaggregated(6)]

    for rank, stock in enumerate(whole):
        assert [each for part in parts for each in part[rank].gradients] == stock.gradients
        assert [each for part in parts for each in part[rank].losses] == stock.losses
        assert parts[-1][rank].weights == stock.weights
    assert [len(part[-1].losses) for part in parts] == [2, 2, 2]
