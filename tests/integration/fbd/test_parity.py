"""MegaFBD trains bit for bit as stock megatron-core does: *input* and *layers* as with full recompute, *linears* as
with none. test_layouts.py has all layouts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.disaggregated import Case
from tests.support.marks import briefly

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 20


CASES = {
    "input, VPP 2": Case(
        "--num-virtual-stages-per-pipeline-rank 2 --hidden-dropout 0.1 --attention-dropout 0.1", forward_pipeline=1
    ),
    "layers, PP 2, forward PP 3": Case("--fbd-mode layers", forward_pipeline=3),
    "linears, one stage": Case("--hidden-dropout 0.1 --attention-dropout 0.1", pipeline=1, linears=True),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "steps"),
    briefly([pytest.param(name, marks=pytest.mark.long if "VPP" in name else ()) for name in CASES], 5, STEPS),
)
def test_losses_and_gradients_are_bitwise_stocks(name: str, steps: int) -> None:
    case = CASES[name]
    stock = replace(case, flags=case.flags.partition("--fbd")[0]).stock(steps)

    chosen = case.disaggregated(steps)

    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert chosen[-1].losses == stock[-1].losses
    assert len(chosen[-1].losses) == len(set(chosen[-1].losses)) == steps
