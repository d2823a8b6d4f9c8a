"""A Llama of Hugging Face, converted, served on two stages of two tensor ranks and looked at: what the page's sites
show, and the text over HTTP, are what a forward pass by hand and `transformers` make of the model's own files."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders

from megatronapp.core.scope.captures import Floats
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.convert.main import main as convert
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.scope.patients import Patient, assert_close, batch_first, patient_on
from tests.support.hugging_face import LETTERS, LLAMA, random_tensors, write_model
from tests.support.plain_forward import Shape, plain_forward
from tests.support.transformer_lens_venv import PYTHON

pytestmark = pytest.mark.long
CONFIG = {**LLAMA, "vocab_size": 34}
SHAPE = Shape(heads=4, groups=2, gated=True)
LAYERS, PROMPT, TOKENS = 2, "hello you", 6
NAMES = {number: letter for letter, number in LETTERS.items()}
TWO_BY_TWO = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
GREEDY = Path(__file__).parents[3] / "support" / "transformers_greedy.py"
SITES = {
    "attn.hook_rot_q": "attn.q",
    "attn.hook_v": "attn.v",
    "attn.hook_pattern": "attn.probs",
    "mlp.hook_post": "mlp.act",
    "hook_resid_post": "resid_post",
}


async def test_a_converted_llama_is_served_and_looked_at(
    scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, core = write_model(tmp_path / "model", CONFIG), tmp_path / "core"
    _join_letters(source / "tokenizer.json")
    assert await asyncio.to_thread(convert, ["hf-to-core", str(source), str(core)]) == 0

    async with patient_on(4, TWO_BY_TWO, core, SHAPE, scope, tmp_path, monkeypatch) as patient:
        await asyncio.to_thread(_sites_are_those_of_its_file, patient)
        wanted = await asyncio.to_thread(_likeliest, source)
        await asyncio.to_thread(_it_writes, patient, wanted)
        await _it_answers_over_http(scope, "".join(NAMES[token] for token in wanted))


def _join_letters(file: Path) -> None:
    """Into words: without a decoder tokens are texts of their own, with spaces between."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(file))


def _sites_are_those_of_its_file(patient: Patient) -> None:
    cache = patient.model.run_with_cache(PROMPT, patient.model.hook_points)

    plain = _plain([LETTERS[letter] for letter in PROMPT])
    assert cache.tokens == [[LETTERS[letter] for letter in PROMPT]]
    for layer in range(LAYERS):
        for hook, site in SITES.items():
            assert_close(cache[f"blocks.{layer}.{hook}"], batch_first(site, plain[site, layer]))
    assert_close(cache["logits"], batch_first("logits", plain["logits", None])[..., : len(LETTERS)])


def _likeliest(source: Path) -> list[int]:
    """The tokens that go on from the prompt: by hand and, where it is installed, by transformers."""
    ids = [LETTERS[letter] for letter in PROMPT]
    for _ in range(TOKENS):
        ids.append(int(_plain(ids)["logits", None][-1, 0, : len(LETTERS)].argmax()))
    found = ids[len(PROMPT) :]
    if PYTHON.exists():
        command = [PYTHON, "-P", GREEDY, source, PROMPT, str(TOKENS), str(len(LETTERS))]
        assert json.loads(subprocess.check_output(command, timeout=300)) == found
    return found


def _it_writes(patient: Patient, wanted: list[int]) -> None:
    [row] = patient.model.generate(PROMPT, TOKENS, stop_at_end_of_document=False)

    assert [token.id for token in row.tokens][-TOKENS:] == wanted


async def _it_answers_over_http(scope: Served, text: str) -> None:
    body = {"prompts": [PROMPT], "tokens_to_generate": TOKENS, "top_k": 1}
    async with scope.client(OPERATOR) as client:
        megatrons = await client.put("/api", json=body)
        completion = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        openais = await client.post("/v1/completions", json=completion)

    assert megatrons.json()["text"] == [PROMPT + text]
    assert openais.json()["choices"][0]["text"] == text


def _plain(ids: list[int]) -> dict[tuple[str, int | None], Floats]:
    return plain_forward(np.array([ids]), _as_core_names_them(random_tensors(CONFIG)), SHAPE, LAYERS)


def _as_core_names_them(tensors: Mapping[str, torch.Tensor]) -> dict[str, Floats]:
    """By hand: queries, key and value of each group one after the other, gate and up as one."""
    named = {
        "embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "final_layernorm.weight": tensors["model.norm.weight"],
        "output_layer.weight": tensors["lm_head.weight"],
    }
    for layer in range(LAYERS):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        q, k, v = (tensors[f"{theirs}self_attn.{name}_proj.weight"].unflatten(0, (SHAPE.groups, -1)) for name in "qkv")
        gate, up = (tensors[f"{theirs}mlp.{name}_proj.weight"] for name in ("gate", "up"))
        named |= {
            ours + "self_attention.linear_qkv.weight": torch.cat([q, k, v], 1).flatten(0, 1),
            ours + "self_attention.linear_proj.weight": tensors[theirs + "self_attn.o_proj.weight"],
            ours + "mlp.linear_fc1.weight": torch.cat([gate, up]),
            ours + "mlp.linear_fc2.weight": tensors[theirs + "mlp.down_proj.weight"],
            ours + "input_layernorm.weight": tensors[theirs + "input_layernorm.weight"],
            ours + "pre_mlp_layernorm.weight": tensors[theirs + "post_attention_layernorm.weight"],
        }
    return {name: tensor.numpy() for name, tensor in named.items()}
