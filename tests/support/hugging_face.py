"""Small models of Hugging Face: random weights, config.json, and a tokenizer of letters."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, models, pre_tokenizers

from megatronapp.trainer import arguments
from megatronapp.trainer.convert import families
from megatronapp.trainer.convert.family import Sizes, Weight
from megatronapp.trainer.convert.fields import Fields

LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz ,.!?")} | {"</s>": 31}
OF_A_RUN = ("--train-iters", "1", "--micro-batch-size", "1", "--lr", "0", "--seq-length", "8")
LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 33,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
GPT2: Mapping[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 33,
    "torch_dtype": "float32",
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "llama-biased": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 16},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 24},
}


def weights_of(config: Mapping[str, Any]) -> list[Weight]:
    fields = Fields(config, "config.json")
    family = families.of_config(fields)
    model = arguments.parse([*family.flags(fields), *OF_A_RUN])[0].model
    return list(family.weights(model, Sizes.of(model, fields.whole("vocab_size"), 8)))


def random_tensors(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        name: (0.1 * torch.randn(shape, generator=random)).to(dtype)
        for weight in weights_of(config)
        for name, shape in weight.sources.items()
    }


def write_model(folder: Path, config: Mapping[str, Any] = LLAMA, dtype: torch.dtype = torch.float32) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file(random_tensors(config, dtype), str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, vocabulary: Mapping[str, int] = LETTERS) -> None:
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "chat_template": "none"}')


def write_sentencepiece(folder: Path, tokens: int = 33) -> None:
    """A tokenizer.model of that many tokens, with bytes for what it does not know."""
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog", "once upon a time", "hello"] * 9),
        model_writer=written,
        vocab_size=tokens,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
