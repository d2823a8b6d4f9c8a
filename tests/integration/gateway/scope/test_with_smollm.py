"""A real model: readable text, values as a forward pass by hand has them, induction heads, a lens that makes sense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from megatronapp.core.scope.results import Top, of_frame
from megatronapp.scope import head_scores
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.conftest import viewing
from tests.integration.gateway.scope.patients import RUN, Patient, assert_close, batch_first, patient_on
from tests.support.smollm import CHANNELS, GROUPS, HEADS, LAYERS, POSITIONS, SHAPE, smollm
from tests.support.transformer_lens_venv import transformer_lens_cache

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PROMPT = "The capital of France is"
CORRUPTED = "The capital of Italy is"
ANSWER = " Paris"
HOOKS = {
    "attn.hook_q": "attn.q_pre",
    "attn.hook_rot_k": "attn.k",
    "attn.hook_v": "attn.v",
    "attn.hook_pattern": "attn.probs",
    "attn.hook_z": "attn.context",
    "mlp.hook_post": "mlp.act",
    "hook_resid_post": "resid_post",
}

COMPARED = [
    "hook_embed",
    "logits",
    *(
        f"blocks.{layer}.*hook_{name}"
        for layer in (0, 14, 29)
        for name in (
            "resid_pre",
            "resid_mid",
            "resid_post",
            "attn_out",
            "mlp_out",
            "q",
            "k",
            "v",
            "rot_q",
            "rot_k",
            "attn_scores",
            "pattern",
            "z",
            "pre",
            "pre_linear",
            "post",
        )
    ),
]
"""All hook points of these layers that both have; what each head adds needs a flag there."""
TRANSFORMER_LENS = {
    "n_layers": LAYERS,
    "n_ctx": POSITIONS,
    "d_model": 576,
    "d_mlp": 1536,
    "d_head": CHANNELS,
    "n_heads": HEADS,
    "n_key_value_heads": GROUPS,
    "act_fn": "silu",
    "gated_mlp": True,
    "normalization_type": "RMS",
    "final_rms": True,
    "eps": 1e-5,
    "positional_embedding_type": "rotary",
    "rotary_dim": CHANNELS,
    "rotary_base": 100_000,
    "rotary_adjacent_pairs": False,
    "original_architecture": "LlamaForCausalLM",
    "device": "cpu",
}


@pytest.fixture
async def patient(
    scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, ranks: int
) -> AsyncIterator[Patient]:
    checkpoint = await asyncio.to_thread(smollm, tmp_path)
    async with patient_on(ranks, layout, checkpoint, SHAPE, scope, tmp_path, monkeypatch) as patient:
        yield patient


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [("--tensor-model-parallel-size 3", 3), ("--pipeline-model-parallel-size 2", 2)],  # 9 heads are not for 2 ranks
)
async def test_a_real_model_is_read_and_understood(patient: Patient) -> None:
    await asyncio.to_thread(_it_writes_readable_text, patient)
    await asyncio.to_thread(_values_are_those_of_a_forward_pass_by_hand, patient)
    await asyncio.to_thread(_it_has_induction_heads, patient)
    await asyncio.to_thread(_the_name_of_the_country_decides, patient)
    await _the_lens_comes_to_the_answer(patient)


@pytest.mark.parametrize(("layout", "ranks"), [("--pipeline-model-parallel-size 2", 2)])
async def test_names_and_values_are_those_of_transformer_lens(patient: Patient, tmp_path: Path) -> None:
    cache = await asyncio.to_thread(patient.model.run_with_cache, PROMPT, COMPARED)
    config = {**TRANSFORMER_LENS, "d_vocab": len(patient.weights["embedding.word_embeddings.weight"])}

    expected = await asyncio.to_thread(transformer_lens_cache, patient.weights, cache.tokens, config, tmp_path)

    points = [name for pattern in COMPARED for name in expected if fnmatchcase(name, pattern)]
    assert set(cache) == set(points)
    for name in points:
        values = expected[name][..., : cache["logits"].shape[-1]] if name == "logits" else expected[name]
        known = np.isfinite(values)
        np.testing.assert_array_equal(np.isfinite(cache[name]), known, name)
        assert_close(cache[name][known], values[known], 1e-4)


def _it_writes_readable_text(patient: Patient) -> None:
    [row] = patient.model.generate(PROMPT, 8)

    assert row.text.startswith(ANSWER)


def _values_are_those_of_a_forward_pass_by_hand(patient: Patient) -> None:
    names = [f"blocks.{layer}.{hook}" for layer in (0, 14, 29) for hook in HOOKS]
    cache = patient.model.run_with_cache(PROMPT, [*names, "logits"])

    plain = patient.plain(cache.tokens[0])
    for layer in (0, 14, 29):
        for hook, site in HOOKS.items():
            assert_close(cache[f"blocks.{layer}.{hook}"], batch_first(site, plain[site, layer]), 1e-4)
    vocabulary = cache["logits"].shape[-1]
    assert_close(cache["logits"], batch_first("logits", plain["logits", None])[..., :vocabulary], 1e-4)


def _it_has_induction_heads(patient: Patient) -> None:
    """Of random tokens that come twice."""
    once = np.random.default_rng(0).integers(1000, 40000, 20).tolist()
    tokens = [*once, *once]
    cache = patient.model.run_with_cache(tokens, ["attn.hook_pattern"])

    induction = np.stack(
        [head_scores(cache[f"blocks.{layer}.attn.hook_pattern"][0], tokens).induction for layer in range(LAYERS)]
    )
    assert (induction > 0.5).any()
    assert np.median(induction) < 0.1
    [surprisal] = patient.model.surprisal([tuple(tokens)])
    assert np.mean(surprisal.nats[21:]) < 0.5 * np.mean(surprisal.nats[1:20])  # type: ignore[arg-type]


def _the_name_of_the_country_decides(patient: Patient) -> None:
    trace = patient.model.causal_trace(PROMPT, CORRUPTED, ANSWER)

    country = next(at for at, text in enumerate(trace.tokens) if "Italy" in text)
    assert trace.clean > trace.corrupted + 1
    assert trace.effect[0, country] > 0.8
    assert trace.effect[-1, -1] == pytest.approx(1, abs=1e-3)
    assert abs(trace.effect[-1, country]) < 0.05
    [answer], [rival] = ([token.id for token in patient.model.tokens(text)] for text in (ANSWER, " Rome"))
    attribution = patient.model.attribution(PROMPT, answer, rival)
    assert attribution.total > 1


async def _the_lens_comes_to_the_answer(patient: Patient) -> None:
    """Early layers do not say it, the last one does."""
    request = {"id": "lens", "prompts": [PROMPT], "max_new_tokens": 1, "sampling": {"temperature": 0}}
    async with viewing(patient.served, OPERATOR, run=RUN) as viewer:
        await viewer.subscribe(1, "layers[0,29].resid_post | last(1) | logitlens(5)", request="lens", credits=9)
        await viewer.send(command={"id": "ask", "generation": {"command": json.dumps(request)}})
        frames = [await viewer.frame() for _ in range(2)]
    [answer] = await asyncio.to_thread(patient.model.tokens, ANSWER)
    tops = {frame.layer: of_frame(frame) for frame in frames}
    first, last = (tops[layer] for layer in (0, 29))
    assert isinstance(first, Top)
    assert isinstance(last, Top)
    assert last.indexes.reshape(-1)[0] == answer.id
    assert answer.id not in first.indexes
