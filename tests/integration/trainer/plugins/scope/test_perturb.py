"""Disturbances are the same in every layout, hold until they are cleared, and leave nothing behind."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.capturing import Look, Wanted, run_captured, whole
from tests.support.forked import run_forked
from tests.support.training import TINY

LLAMA = (
    "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"
RELATIVE = 1e-5
"""Of losses: that of layouts that nobody disturbs (test_parity)."""

NOISE: dict[str, Any] = {"place": "calculation", "kind": "noise1", "coefficient": 0.3}
STORAGE: list[dict[str, Any]] = [
    {"place": "storage", "kind": "noise1", "coefficient": 0.02, "steps": "1:3"},
    {"place": "storage", "site": "*embeddings.weight", "kind": "noise2", "coefficient": 0.5},
    {
        "place": "storage",
        "site": "layers.1.mlp.linear_fc1.weight",
        "kind": "bit_flip",
        "coefficient": 1e-3,
        "bits": "10",
    },
]
EVERYTHING: list[dict[str, Any]] = [
    {**NOISE, "layers": "1", "redraw": True},
    {"place": "calculation", "site": "attn.*", "kind": "noise2", "coefficient": 0.2, "layers": "0,2"},
    {"place": "calculation", "site": "mlp.gate", "kind": "scale", "coefficient": 1.5, "tokens": "3:9"},
    {"place": "calculation", "site": "mlp.act", "kind": "bit_flip", "coefficient": 0.01, "bits": "mantissa"},
    {"place": "calculation", "site": "attn.context", "kind": "zero", "heads": "1", "layers": "3"},
    {"place": "calculation", "site": "attn.q", "kind": "swap_heads", "heads": "0", "with_heads": "3", "layers": "2"},
    {"place": "calculation", "site": "resid_mid", "kind": "stuck_at", "coefficient": 0.5, "channels": "7"},
    {"place": "system", "kind": "noise1", "coefficient": 0.1, "steps": "2"},
    {"place": "system", "kind": "constant", "coefficient": 0.4, "layers": "0"},
    *STORAGE,
]


@cache
def disturbed(ranks: int = 1, flags: str = "", *, storage_alone: bool = False) -> list[Look]:
    plan = {"plan": "p", "seed": 5, "perturbations": STORAGE if storage_alone else EVERYTHING}
    wanted = Wanted(("resid_post", "attn.context"), plan=plan)
    return run_forked(ranks, run_captured, f"{TINY} --train-iters 3 {flags}", wanted)


@cache
def undisturbed(flags: str = "", ranks: int = 1) -> Look:
    return run_forked(ranks, run_captured, f"{TINY} --train-iters 3 {flags}", Wanted())[-1]


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, f"--pipeline-model-parallel-size 2 {FULL} 1"),
        pytest.param(2, "--use-distributed-optimizer", marks=pytest.mark.long),
    ],
)
def test_a_layout_is_disturbed_as_one_process_is(ranks: int, layout: str) -> None:
    reference, found = disturbed(1, LLAMA), disturbed(ranks, f"{LLAMA} {layout}")

    assert found[-1].losses == pytest.approx(reference[0].losses, rel=RELATIVE)
    assert reference[0].losses != pytest.approx(undisturbed(LLAMA).losses, rel=10 * RELATIVE)
    for layer in range(4):
        expected = whole(reference, ("resid_post", layer, False))
        assert np.abs(whole(found, ("resid_post", layer, False)) - expected).max() < 1e-5 * np.abs(expected).max()


def test_noise_drawn_anew_in_a_recomputation_would_show() -> None:
    """The loss of one process with recomputation is bitwise that without: noise is a function of its place."""
    assert disturbed(1, f"{LLAMA} {FULL} 1")[0].losses == disturbed(1, LLAMA)[0].losses


def test_only_the_chosen_head_is_zero() -> None:
    context = whole(disturbed(1, LLAMA), ("attn.context", 3, False))

    assert not context[:, :, 1].any()
    assert all(context[:, :, head].any() for head in (0, 2, 3))


@pytest.mark.parametrize("flags", ["", "--bf16"])
def test_weights_come_back_bit_for_bit(flags: str) -> None:
    """With a learning rate of 0 the optimizer changes nothing, so that all that differs would be the disturbance's."""
    still = f"{LLAMA} --lr 0 --weight-decay 0 {flags}"

    [found] = disturbed(1, still, storage_alone=True)

    assert all(np.array_equal(found.trained[name], found.weights[name]) for name in found.weights if flags == "")
    clean = undisturbed(still)
    assert all(np.array_equal(found.trained[name], clean.trained[name]) for name in clean.trained)
    assert found.losses[0] != clean.losses[0]


def test_one_replica_alone_is_disturbed() -> None:
    plan = {"plan": "p", "replica": 1, "perturbations": [NOISE]}
    wanted = Wanted(("mlp.out",), plan=plan)

    found = run_forked(2, run_captured, f"{TINY} --train-iters 1", wanted)
    clean = run_forked(2, run_captured, f"{TINY} --train-iters 1", Wanted(("mlp.out",)))

    for replica, same in ((0, True), (1, False)):
        parts, untouched = (each[replica].parts["mlp.out", 0, False] for each in (found, clean))
        assert np.array_equal(parts[0].value, untouched[0].value) is same
