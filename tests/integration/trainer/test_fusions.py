"""A fused kernel learns what its own formula learns, computed one operation after the other."""

from __future__ import annotations

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import run_forked
from tests.support.training import TINY, train


def losses(flags: str, *, compiled: bool = False) -> list[float]:
    return run_forked(1, _train, f"{TINY} --train-iters 20 {flags}", compiled)[-1]


def _train(flags: str, compiled: bool) -> list[float]:
    import torch._dynamo.config

    torch._dynamo.config.disable = not compiled
    return train(flags).losses


@pytest.mark.parametrize(
    ("model", "fusions", "relative"),
    [
        ("--swiglu", "megatron", 1e-5),
        pytest.param("--openai-gelu", "bias-gelu", 1e-5, marks=pytest.mark.long),
        pytest.param("--geglu --openai-gelu", "bias-geglu", 1e-5, marks=pytest.mark.long),
        pytest.param("--swiglu --num-experts 2 --disable-bias-linear", "bias-swiglu", 1e-5, marks=pytest.mark.long),
        pytest.param("--bf16", "cross-entropy bias-dropout", 1e-2, marks=pytest.mark.long),
        pytest.param("--hidden-dropout 0.1", "bias-dropout", 1e-5, marks=pytest.mark.long),
    ],
)
def test_it_learns_as_its_unfused_formula(model: str, fusions: str, relative: float) -> None:
    fused = losses(f"{model} --fusions {fusions}")

    assert fused == pytest.approx(losses(model), rel=relative)


@pytest.mark.long
def test_compiled_it_learns_as_its_unfused_formula() -> None:
    assert losses("--swiglu --fusions megatron", compiled=True) == pytest.approx(losses("--swiglu"), rel=1e-5)
