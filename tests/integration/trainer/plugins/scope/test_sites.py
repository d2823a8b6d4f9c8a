"""Every site shows what a plain forward pass has there, whatever the layout; and looking changes nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch.nn.functional as F  # noqa: N812

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.capturing import Look, Wanted, Where, run_captured, whole
from tests.support.forked import run_forked
from tests.support.plain_forward import Shape, plain_forward
from tests.support.training import TINY

LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
MOE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"
MODELS = {
    "gpt": ("", Shape(heads=4, groups=4)),
    "llama": (LLAMA, Shape(heads=4, groups=2, gated=True)),
    "geglu": (LLAMA.replace("--swiglu", "--geglu"), Shape(heads=4, groups=2, gated=True, activation=F.gelu)),
    "squared relu": ("--squared-relu", Shape(heads=4, groups=4, activation=lambda x: x.clamp(min=0) ** 2)),
}
FLAGS = {name: flags for name, (flags, _) in MODELS.items()} | {"moe": MOE}
ALL = Wanted(("*",), gradients=True)
VALUE_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
"""Of the largest |value|, float32. Gradients of queries are small differences of large sums."""
slower = pytest.mark.long
"""Layouts that differ from another one here in one thing alone."""
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"


@cache
def looks(model: str, ranks: int = 1, layout: str = "", wanted: Wanted = ALL) -> list[Look]:
    return run_forked(ranks, run_captured, f"{TINY} --train-iters 2 {FLAGS[model]} {layout}", wanted)


def distance(reference: np.ndarray, value: np.ndarray) -> float:
    """Largest difference over the largest |value| of the reference."""
    assert value.shape == reference.shape
    return float(np.abs(value - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize(
    "model", ["gpt", "llama", *(pytest.param(name, marks=slower) for name in ("geglu", "squared relu"))]
)
def test_sites_of_one_process_are_those_of_a_forward_pass_written_by_hand(model: str) -> None:
    [found] = looks(model)
    shape = MODELS[model][1]
    expected = plain_forward(np.concatenate(found.tokens[:4]), found.weights, shape, layers=4)

    seen = {
        (site, layer): whole([found], (site, layer, False)) for site, layer, gradient in found.parts if not gradient
    }

    for where, values in expected.items():
        if where[0] == "attn.result":  # is computed where it is asked for: gateway/scope/test_with_client.py
            continue
        shown = seen[where]
        if where[0] == "attn.scores":  # before their mask: what is masked has no meaning
            past = np.tril(np.ones(values.shape[-2:], bool))
            values, shown = values[..., past], shown[..., past]
        assert distance(values, shown) < VALUE_TOLERANCE, where
    assert {site for site, _ in seen} - {site for site, _ in expected} <= {"loss", "mlp.fc1", "tokens"}
    np.testing.assert_array_equal(seen["tokens", None], np.concatenate(found.tokens[:4]))


@pytest.mark.parametrize(
    ("model", "ranks", "layout"),
    [
        pytest.param("gpt", 1, f"{FULL} 1", marks=slower),
        pytest.param("gpt", 2, "--pipeline-model-parallel-size 2 --recompute-granularity selective", marks=slower),
        ("gpt", 2, f"--tensor-model-parallel-size 2 --sequence-parallel {FULL} 2"),
        pytest.param("llama", 2, "--tensor-model-parallel-size 2", marks=slower),
        pytest.param("gpt", 2, "", marks=slower),  # two replicas
        ("llama", 2, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
        pytest.param(
            "llama",
            4,
            "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer",
            marks=slower,
        ),
        pytest.param("moe", 2, "--expert-model-parallel-size 2", marks=slower),
        pytest.param("moe", 2, f"--pipeline-model-parallel-size 2 {FULL} 1", marks=slower),
        pytest.param("moe", 2, "--tensor-model-parallel-size 2 --sequence-parallel", marks=slower),
    ],
)
def test_sites_and_their_gradients_are_those_of_one_process(model: str, ranks: int, layout: str) -> None:
    reference, found = looks(model), looks(model, ranks, layout)

    expected = {where for each in reference for where in each.parts}
    assert {where for each in found for where in each.parts} == expected
    for where in sorted(expected, key=str):
        tolerance = GRADIENT_TOLERANCE if where[2] else VALUE_TOLERANCE
        assert distance(_finite(whole(reference, where), where), _finite(whole(found, where), where)) < tolerance, where


def _finite(values: np.ndarray, where: Where) -> np.ndarray:
    """Scores before their mask are the same in all layouts; nothing is left out but their gradient's masked cells."""
    return np.nan_to_num(values) if where == ("attn.scores", where[1], True) else values


def test_a_router_gives_each_token_to_the_likeliest_experts() -> None:
    [found] = looks("moe")

    for layer in range(4):
        logits, probabilities, load = (
            whole([found], (f"router.{name}", layer, False)) for name in ("logits", "probs", "load")
        )
        chosen = logits >= np.sort(logits, axis=-1)[..., -2:-1]
        exponentials = np.where(chosen, np.exp(logits - logits.max(-1, keepdims=True)), 0)
        assert np.array_equal(load, chosen)
        assert distance(exponentials / exponentials.sum(-1, keepdims=True), probabilities) < VALUE_TOLERANCE
        assert ("router.probs", layer, True) in found.parts
        assert ("router.load", layer, True) not in found.parts


@pytest.mark.parametrize("model", FLAGS)
def test_losses_are_bitwise_the_same_with_and_without_a_look(model: str) -> None:
    [unwatched] = looks(model, wanted=Wanted())
    [watched] = looks(model)

    assert watched.losses == unwatched.losses
    assert watched.trained.keys() == unwatched.trained.keys()
    assert all(np.array_equal(watched.trained[name], unwatched.trained[name]) for name in watched.trained)


def test_no_hook_is_left_when_nobody_looks() -> None:
    [unwatched], [watched] = looks("gpt", wanted=Wanted()), looks("gpt")

    assert unwatched.hooks_before == unwatched.hooks_after == watched.hooks_before == watched.hooks_after
    assert watched.hooks_while > watched.hooks_before
    assert unwatched.hooks_while == unwatched.hooks_before
