"""Models of `transformers` and the same, converted: logits, and the way back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from megatronapp.trainer.convert import core_to_hf, hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.models.t5 import attention_masks
from megatronapp.trainer.safetensors_folder import TensorFolder
from tests.support.built import built
from tests.support.forked import run_forked
from tests.support.hugging_face import write_t5_pieces, write_word_pieces
from tests.support.marks import some
from tests.support.transformer_lens_venv import HOW, PYTHON

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[3] / "support" / "transformers_model.py"
TOKENS = np.random.default_rng(1).integers(0, 99, (2, 60)).tolist()
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
BERT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
T5 = {
    "d_model": 32,
    "d_ff": 56,
    "d_kv": 8,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "initializer_factor": 0.5,
    "relative_attention_max_distance": 40,
    "vocab_size": 99,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
WINDOW = 8
"""Of tokens, far less than there are."""
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
SCALED = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama-2": {"model_type": "llama", **LLAMA, "num_key_value_heads": 4},
    "llama-3": {"model_type": "llama", **LLAMA, "rope_scaling": SCALED, "rope_theta": 500_000.0, "head_dim": 64},
    "llama-tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "llama-biased": {"model_type": "llama", **LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", **LLAMA, "sliding_window": None},
    "mistral-window": {"model_type": "mistral", **LLAMA, "sliding_window": WINDOW},
    "qwen2": {"model_type": "qwen2", **LLAMA, "rope_theta": 1_000_000.0},
    "qwen2-window": {"model_type": "qwen2", **LLAMA, **SLIDING, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 16, "tie_word_embeddings": True},
    "qwen3-window": {"model_type": "qwen3", **LLAMA, **SLIDING, "max_window_layers": 0},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 99},
    "gpt2-untied": {
        **{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 99},
        **{"tie_word_embeddings": False, "n_inner": 48, "activation_function": "gelu"},
    },
    "megatron-bert": {"model_type": "megatron-bert", **BERT},
    "megatron-bert-untied": {"model_type": "megatron-bert", **BERT, "tie_word_embeddings": False},
    "t5": {"model_type": "t5", **T5},
    "t5-silu": {"model_type": "t5", **T5, "feed_forward_proj": "gated-silu"},
    "mt5": {"model_type": "mt5", **T5, "d_kv": 24, "relative_attention_num_buckets": 16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all models, each with its logits."""
    if not PYTHON.exists():
        pytest.skip(f"transformers is not installed: {HOW}")
    folder = tmp_path_factory.mktemp("transformers")
    wanted = {name: {"config": config, "tokens": TOKENS} for name, config in MODELS.items()}
    (folder / "wanted.json").write_text(json.dumps(wanted))
    subprocess.run([PYTHON, "-P", SCRIPT, folder], check=True, timeout=500)
    return folder


def logits(checkpoint: Path, kind: str) -> dict[str, npt.NDArray[np.float32]]:
    """For a rank: of all tokens, [batch, position, vocabulary], and of the order of two texts."""
    import torch

    tokens = torch.tensor(TOKENS)
    with built(checkpoint) as [chunk], torch.no_grad():
        chunk.eval()
        if kind == "megatron-bert":
            types = (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).long().expand_as(tokens)
            words, order = chunk(tokens, torch.ones_like(tokens), types)
            return {"logits": words.numpy().copy(), "order": order.numpy().copy()}
        if kind in ("t5", "mt5"):
            seen = torch.ones_like(tokens)
            masks = attention_masks({"enc_mask": seen, "dec_mask": seen})
            return {"logits": chunk(tokens, tokens.flip(1), *masks).numpy().copy()}
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        return {"logits": chunk(tokens, positions, None).numpy().copy()}


def tokenizer_of(kind: str, folder: Path) -> dict[str, str]:
    """What stands in for it: that of BERT and T5 must have the tokens that their data are made with."""
    if kind == "megatron-bert":
        write_word_pieces(folder)
        return {"vocab_file": str(folder / "vocab.txt")}
    if kind in ("t5", "mt5"):
        write_t5_pieces(folder)
        return {"tokenizer_model": str(folder / "spiece.model"), "vocab_extra_ids": "10"}
    return {"tokenizer_type": "NullTokenizer"}


QUICK = {"llama-3", "mistral-window", "qwen2-window", "qwen3", "gpt2", "megatron-bert", "t5"}


@pytest.mark.parametrize("name", some(MODELS, lambda name: name in QUICK))
def test_a_converted_model_has_its_logits_and_goes_back_bitwise(name: str, folder: Path, tmp_path: Path) -> None:
    core, back, kind = tmp_path / "core", tmp_path / "back", MODELS[name]["model_type"]

    hf_to_core.convert(Options(source=folder / name, target=core, tokenizer=tokenizer_of(kind, tmp_path)))
    core_to_hf.convert(Options(source=core, target=back, max_shard_bytes=30_000))

    [found] = run_forked(1, logits, core, kind)
    for key, wanted in np.load(folder / f"{name}.npz").items():
        np.testing.assert_allclose(found[key], wanted, atol=1e-4, rtol=0)
    there, again = TensorFolder(folder / name), TensorFolder(back)
    assert again.tensors.keys() == there.tensors.keys()
    assert len({stored.file for stored in again.tensors.values()}) > 1
    for tensor in there.tensors:
        assert again.read(tensor).equal(there.read(tensor)), tensor
    configs = [json.loads((each / "config.json").read_text()) for each in (folder / name, back)]
    assert configs[0] == configs[1]
