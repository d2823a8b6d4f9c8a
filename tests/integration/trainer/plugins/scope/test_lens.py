"""The logit lens on any stage is what final norm and output layer make of that layer's residual in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatronapp.core.scope.results import Top, of_frame
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.v1 import scope_pb2
from tests.support.scoped_job import scoped_job

K = 5
TWO_STAGES = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"


def lenses(ranks: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> dict[int | None, list[Top]]:
    """By layer the results of the tensor ranks of the last stage, for the first step after the pause."""
    with scoped_job(ranks, layout, monkeypatch, steps=8) as job:
        step = job.paused_before()
        taps = [
            scope_pb2.ScopeTap(id=1, expression=f"layers[0,3].resid_post | last(3) | logitlens({K})"),
            scope_pb2.ScopeTap(id=2, expression=f"final_norm | token(2) | logitlens({K})"),
        ]
        job.gateway.show(1, taps, job.ranks)
        job.gateway.train("step", 0, job.ranks, "step", steps=1, lease_seconds=120)
        ends = job.ranks[-2:] if ranks > 1 else job.ranks
        wanted = job.gateway.wait(
            lambda: all(len([f for f in job.gateway.frames[rank] if f.step == step]) == 3 for rank in ends)
        )
        assert wanted
        frames = [frame for rank in ends for frame in job.gateway.frames[rank] if frame.step == step]
        job.gateway.train("resume", 0, job.ranks, "resume")
        job.done()
    found: dict[int | None, list[Top]] = {}
    for frame in frames:
        result = of_frame(frame)
        assert isinstance(result, Top)
        found.setdefault(frame.layer, []).append(result)
    return found


def merged(parts: list[Top]) -> tuple[np.ndarray, np.ndarray]:
    """Indexes of the k largest of all parts, and their log-probabilities."""
    indexes, values = (np.concatenate([getattr(part, name) for part in parts], -1) for name in ("indexes", "values"))
    order = np.argsort(-values, -1, kind="stable")[..., :K]
    total = np.logaddexp.reduce([part.log_sum_exp.astype(np.float64) for part in parts])
    best = np.take_along_axis(values, order, -1)
    return np.take_along_axis(indexes, order, -1), best - total[..., None]


@pytest.mark.long
def test_the_lens_of_two_stages_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, spread = lenses(1, "", monkeypatch), lenses(4, TWO_STAGES, monkeypatch)

    assert set(alone) == set(spread) == {0, 3, None}
    for layer, shape in ((0, (2, 3, K)), (3, (2, 3, K)), (None, (2, K))):
        (indexes, chances), (others, other_chances) = merged(alone[layer]), merged(spread[layer])
        assert indexes.shape == shape
        assert np.array_equal(indexes, others)
        np.testing.assert_allclose(chances, other_chances, atol=1e-5)
        assert (np.exp(chances).sum(-1) < 1).all()


SEPARATE = "--normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear"
STILL = "--lr 0 --weight-decay 0"
"""The lens is made in the border behind the step, with the weights that are there then."""


@pytest.mark.parametrize(("ranks", "layout"), [(1, ""), (2, "--pipeline-model-parallel-size 2")])
def test_the_lens_is_what_numpy_makes_of_the_rows_and_the_last_stages_weights(
    ranks: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        1: f"layers[0].resid_post | last(3) | logitlens({K})",
        2: "layers[0].resid_post | last(3)",
        3: "weight.final_norm",
        4: "weight.unembed",
    }
    with scoped_job(ranks, f"{SEPARATE} {STILL} {layout}", monkeypatch, steps=8) as job:
        step = job.paused_before()
        taps = [scope_pb2.ScopeTap(id=number, expression=each, quantizer="f32") for number, each in asked.items()]
        job.gateway.show(1, taps, job.ranks)
        job.gateway.train("step", 0, job.ranks, "step", steps=1, lease_seconds=120)

        def first(tap: int) -> Any:
            """Of the first microbatch."""
            every = [frame for rank in job.ranks for frame in job.gateway.frames[rank]]
            return next((f for f in every if (f.subscription, f.step) == (tap, step) and not f.microbatch), None)

        job.gateway.wait(lambda: all(first(tap) is not None for tap in asked))
        lens, rows, norm, unembed = (of_frame(first(tap)) for tap in asked)
        epsilon = job.gateway.hellos[0].model.norm_epsilon
        job.gateway.train("resume", 0, job.ranks, "resume")
        job.done()

    given = rows.array.astype(np.float64)
    logits = given / np.sqrt((given**2).mean(-1, keepdims=True) + epsilon) * norm.array @ unembed.array.T
    expected = np.sort(logits, -1)[..., ::-1][..., :K]
    np.testing.assert_allclose(lens.values, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lens.log_sum_exp, np.log(np.exp(logits).sum(-1)), rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(logits, lens.indexes.astype(int), -1), lens.values, atol=1e-5)
