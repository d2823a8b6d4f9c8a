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
from megatronapp.trainer.generate.arguments import Source
from megatronapp.trainer.generate.loaded import loaded
from megatronapp.trainer.safetensors_folder import TensorFolder
from tests.support.forked import run_forked
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
    "qwen2": {"model_type": "qwen2", **LLAMA, "rope_theta": 1_000_000.0},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 16, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 99},
    "gpt2-untied": {
        **{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 99},
        **{"tie_word_embeddings": False, "n_inner": 48, "activation_function": "gelu"},
    },
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


def logits(checkpoint: Path) -> npt.NDArray[np.float32]:
    """For a rank: [batch, position, vocabulary]."""
    import torch

    with loaded(Source(folder=checkpoint)) as generator, torch.no_grad():
        tokens = torch.tensor(TOKENS)
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        found: torch.Tensor = generator.engine.stages.chunks[0](tokens, positions, None)
        return found.numpy().copy()


@pytest.mark.parametrize("name", some(MODELS, lambda name: name in {"llama-3", "qwen3", "gpt2"}))
def test_a_converted_model_has_its_logits_and_goes_back_bitwise(name: str, folder: Path, tmp_path: Path) -> None:
    core, back = tmp_path / "core", tmp_path / "back"
    without = {"tokenizer_type": "NullTokenizer"}

    hf_to_core.convert(Options(source=folder / name, target=core, tokenizer=without))
    core_to_hf.convert(Options(source=core, target=back, max_shard_bytes=30_000))

    [found] = run_forked(1, logits, core)
    wanted = np.load(folder / f"{name}.npz")["logits"]
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
    there, again = TensorFolder(folder / name), TensorFolder(back)
    assert again.tensors.keys() == there.tensors.keys()
    assert len({stored.file for stored in again.tensors.values()}) > 1
    for tensor in there.tensors:
        assert again.read(tensor).equal(there.read(tensor)), tensor
    configs = [json.loads((each / "config.json").read_text()) for each in (folder / name, back)]
    assert configs[0] == configs[1]
