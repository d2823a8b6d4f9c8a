"""What MegaScope shows of a model that is spread over GPUs is what a plain forward pass on one of them computes, in
float32 without TF32; and where nobody watches the losses are those of a run without it, to the bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from tests.gpu.devices import DEVICE, DEVICES, needs
from tests.support.capturing import Floats, Look, Wanted, run_captured, whole
from tests.support.forked import run_forked
from tests.support.plain_forward import Shape, plain_forward
from tests.support.training import TINY, train

LAYERS, MICROBATCHES, STEPS = 4, 4, 20
LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
MODELS = {"gpt": ("", Shape(heads=4, groups=4)), "llama": (LLAMA, Shape(heads=4, groups=2, gated=True))}
TENSOR, PIPELINE = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
SPREAD = (
    [("gpt", 4, f"{TENSOR} {PIPELINE}"), ("llama", 4, f"{TENSOR} {PIPELINE} --sequence-parallel")]
    if DEVICES >= 4
    else [("gpt", 2, TENSOR), ("llama", 2, PIPELINE)]
)
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), needs(SPREAD[0][1])]
VALUE_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
"""Of the largest |value|. Gradients of queries are small differences of large sums."""
ENVIRONMENT = {"NVIDIA_TF32_OVERRIDE": "0"}


@cache
def looks(model: str, ranks: int = 1, layout: str = "") -> list[Look]:
    flags = f"{TINY} --train-iters 2 {MODELS[model][0]} {layout}"
    return run_forked(ranks, run_captured, flags, Wanted(("*",), gradients=True), environment=ENVIRONMENT)


def plain(flags: str) -> list[float]:
    return train(flags).losses


def unwatched(flags: str) -> list[float]:
    return train(f"{flags} --scope", plugins=(ScanPlugin, ScopePlugin)).losses


def distance(expected: Floats, shown: Floats) -> float:
    """Largest difference over the largest |value| that is expected."""
    assert shown.shape == expected.shape
    return float(np.abs(shown - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("model", "ranks", "layout"), SPREAD)
def test_each_site_is_that_of_a_plain_forward_on_one_gpu(model: str, ranks: int, layout: str) -> None:
    [one], found = looks(model), looks(model, ranks, layout)
    tokens = np.concatenate(one.tokens[:MICROBATCHES])
    expected = plain_forward(tokens, one.weights, MODELS[model][1], LAYERS, device=DEVICE)

    worst = dict[str, float]()
    for (site, layer), values in expected.items():
        if site == "attn.result":  # is computed where it is asked for
            continue
        shown = whole(found, (site, layer, False))
        if site == "attn.scores":  # before their mask: what is masked has no meaning
            past = np.tril(np.ones(values.shape[-2:], bool))
            values, shown = values[..., past], shown[..., past]
        worst[site] = max(worst.get(site, 0.0), distance(values, shown))

    print(f"\n{model} {layout}: { ({site: f'{far:.1e}' for site, far in worst.items()}) }")
    assert len(worst) >= 12
    assert {site: far for site, far in worst.items() if far >= VALUE_TOLERANCE} == {}


@pytest.mark.parametrize(("model", "ranks", "layout"), SPREAD)
def test_gradients_are_those_of_one_gpu(model: str, ranks: int, layout: str) -> None:
    reference, found = looks(model), looks(model, ranks, layout)
    places = sorted((where for where in reference[0].parts if where[2]), key=str)

    worst = dict[str, float]()
    for where in places:
        expected, shown = (np.nan_to_num(whole(of, where)) for of in (reference, found))  # masked scores have none
        worst[where[0]] = max(worst.get(where[0], 0.0), distance(expected, shown))

    print(f"\n{model} {layout}: { ({site: f'{far:.1e}' for site, far in worst.items()}) }")
    assert worst
    assert {site: far for site, far in worst.items() if far >= GRADIENT_TOLERANCE} == {}


def test_losses_are_the_same_to_the_bit_when_nobody_watches() -> None:
    _, ranks, layout = SPREAD[0]
    flags = f"{TINY} --train-iters {STEPS} {layout}"

    without, beside = (run_forked(ranks, run, flags, environment=ENVIRONMENT)[-1] for run in (plain, unwatched))

    again = without if beside == without else run_forked(ranks, plain, flags, environment=ENVIRONMENT)[-1]
    assert again == without, "the trainer alone does not compute the same twice: nothing can be compared"
    assert len(without) == STEPS
    assert beside == without
