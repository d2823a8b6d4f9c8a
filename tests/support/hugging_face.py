"""Small models of Hugging Face: random weights, config.json, and a tokenizer of letters."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
WINDOW: Mapping[str, Any] = {"use_sliding_window": True, "sliding_window": 16}
GPT2: Mapping[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 33,
    "torch_dtype": "float32",
}
BERT: Mapping[str, Any] = {
    "model_type": "megatron-bert",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "vocab_size": 33,
    "torch_dtype": "float32",
}
T5: Mapping[str, Any] = {
    "model_type": "t5",
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 8,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "vocab_size": 33,
    "torch_dtype": "float32",
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "llama-biased": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": None},
    "mistral-window": {**LLAMA, "model_type": "mistral", "sliding_window": 16},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen2-window": {**LLAMA, "model_type": "qwen2", **WINDOW, "max_window_layers": 1},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "qwen3-window": {**LLAMA, "model_type": "qwen3", **WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 24},
    "megatron-bert": BERT,
    "megatron-bert-untied": {**BERT, "tie_word_embeddings": False},
    "t5": T5,
    "t5-silu": {**T5, "feed_forward_proj": "gated-silu"},
    "mt5": {**T5, "model_type": "mt5"},
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
    _OWN_TOKENIZER.get(str(config.get("model_type")), write_tokenizer)(folder)
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


def write_word_pieces(folder: Path) -> None:
    """A vocab.txt of letters; [BOS] and [EOS] come on top of these 31."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')


def write_t5_pieces(
    folder: Path,
    *,
    texts: Iterable[str] = ("abc cab dab bad add " * 9,),
    tokens: int = 20,
    extra_ids: int = 10,
    user_defined_symbols: Sequence[str] = (),
) -> None:
    """A spiece.model, which has no token that begins a text."""
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        vocab_size=tokens,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        user_defined_symbols=list(user_defined_symbols),
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(written.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": extra_ids}))


_OWN_TOKENIZER: Mapping[str, Callable[[Path], None]] = {
    "megatron-bert": write_word_pieces,
    "t5": write_t5_pieces,
    "mt5": write_t5_pieces,
}
