"""What MegaScope shows of a training on GPUs, where results are copied while the host goes on."""

from __future__ import annotations

import pytest

from megatronapp.v1 import scope_pb2
from tests.gpu.devices import REHEARSED, needs
from tests.support.expert_outputs import ACTIVATIONS, MOE, assert_add_up, assert_products_add_up, shown_step
from tests.support.forked import RankFailedError
from tests.support.overflowing import (
    EACH_MICROBATCH_OF,
    INFINITE_LOSS,
    NOT_NUMBERS,
    layers_shown,
    overflow,
    told_of_nonfinite,
)
from tests.support.scoped_job import scoped_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), needs(2)]

ALL_TO_ALL = pytest.mark.skipif(bool(REHEARSED), reason="alltoall needs GPUs")
EXPERTS_2 = "--expert-model-parallel-size 2"


@pytest.mark.parametrize(
    ("layout", "replicas"),
    [
        (EXPERTS_2, 2),
        pytest.param(f"{EXPERTS_2} --moe-token-dispatcher-type alltoall", 2, marks=ALL_TO_ALL),
        pytest.param(
            "--tensor-model-parallel-size 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
            1,
            marks=ALL_TO_ALL,
        ),
    ],
)
def test_what_experts_add_is_together_what_the_mlp_adds(
    layout: str, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    [experts, mlp, load], _ = shown_step(2, f"{MOE} {layout}", monkeypatch, replicas=replicas)

    assert_add_up(experts, mlp, load)


@pytest.mark.parametrize(
    ("layout", "replicas"),
    [
        (EXPERTS_2, 2),
        (f"{EXPERTS_2} --moe-grouped-gemm --bf16", 2),
        ("--tensor-model-parallel-size 2 --sequence-parallel", 1),
        pytest.param("--moe-token-dispatcher-type alltoall", 2, marks=ALL_TO_ALL),
    ],
)
def test_activations_of_experts_give_through_their_second_matrices_what_the_mlp_adds(
    layout: str, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = shown_step(2, f"{MOE} {layout}", monkeypatch, sites=ACTIVATIONS, replicas=replicas)

    assert_products_add_up(*found, tolerance=2e-2 if "bf16" in layout else 1e-5)


@pytest.mark.parametrize("disturbed", [NOT_NUMBERS, INFINITE_LOSS], ids=["no numbers", "infinite loss"])
def test_both_stages_send_the_frames_of_the_step_that_a_training_dies_of(
    disturbed: scope_pb2.ScopePerturbation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one does not know the loss: it hangs in its next step, and is killed there."""
    with scoped_job(2, "--pipeline-model-parallel-size 2", monkeypatch, steps=5000) as job:
        step = overflow(job, lambda _: None, disturbed)
        with pytest.raises(RankFailedError):
            job.done()

        job.gateway.wait(lambda: job.gateway.left == {0, 1}, 20)
        told = told_of_nonfinite(job)

    assert [layers_shown(job, rank, step) for rank in job.ranks] == EACH_MICROBATCH_OF
    if disturbed is NOT_NUMBERS:
        assert ("resid_post", 2, step) in {(alert.site, alert.layer, alert.step) for alert in told}
