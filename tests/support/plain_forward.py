"""A GPT's forward pass written out by hand, in one process, without megatron-core: what the values at sites must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    heads: int
    groups: int
    gated: bool = False
    """With RMSNorm and rotation, as Llama has it; else with LayerNorm, learned positions, and GELU, as GPT-2 has it."""
    eps: float = 1e-5


def plain_forward(
    tokens: npt.NDArray[np.int64], weights: Mapping[str, Floats], shape: Shape, layers: int
) -> dict[tuple[str, int | None], Floats]:
    """By (site, layer): values in the order of axes [token, batch, …], of scores and probabilities [batch, head, query,
    key]; masked scores are left as they are. tokens: [batch, token]."""
    model = _Model({name: torch.from_numpy(value) for name, value in weights.items()}, shape)
    with torch.no_grad():
        model.run(torch.from_numpy(tokens), layers)
    return {key: value.contiguous().numpy() for key, value in model.seen.items()}


class _Model:
    def __init__(self, weights: dict[str, torch.Tensor], shape: Shape) -> None:
        self.w, self.shape = weights, shape
        self.seen: dict[tuple[str, int | None], torch.Tensor] = {}

    def run(self, tokens: torch.Tensor, layers: int) -> None:
        embedding = self.w["embedding.word_embeddings.weight"]
        x = embedding[tokens].transpose(0, 1)
        if not self.shape.gated:
            x = x + self.w["embedding.position_embeddings.weight"][: len(x)].unsqueeze(1)
        self.seen["embed", None] = x
        for layer in range(layers):
            x = self.layer(x, layer)
        x = self.seen["final_norm", None] = self.norm(x, "final_layernorm")
        self.seen["logits", None] = x @ self.w.get("output_layer.weight", embedding).T

    def layer(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at = f"layers.{layer}."
        self.seen["resid_pre", layer] = x
        x = x + self.attention(self.norm(x, at + "input_layernorm"), layer)
        self.seen["resid_mid", layer] = x
        x = x + self.mlp(self.norm(x, at + "pre_mlp_layernorm"), layer)
        self.seen["resid_post", layer] = x
        return x

    def attention(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at, shape, seen = f"layers.{layer}.self_attention.", self.shape, self.seen
        mixed = self.linear(x, at + "linear_qkv").unflatten(-1, (shape.groups, shape.heads // shape.groups + 2, -1))
        q, k, v = mixed[..., :-2, :].flatten(2, 3), mixed[..., -2, :], mixed[..., -1, :]
        if shape.gated:
            q, k = _rotated(q), _rotated(k)
        seen["attn.q", layer], seen["attn.k", layer], seen["attn.v", layer] = q, k, v
        k, v = (each.repeat_interleave(shape.heads // shape.groups, dim=2) for each in (k, v))
        scores = torch.einsum("qbhd,kbhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        probs = scores.masked_fill(future, -math.inf).softmax(-1)
        seen["attn.scores", layer], seen["attn.probs", layer] = scores, probs
        context = seen["attn.context", layer] = torch.einsum("bhqk,kbhd->qbhd", probs, v)
        out = seen["attn.out", layer] = self.linear(context.flatten(2), at + "linear_proj")
        return out

    def mlp(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at, seen = f"layers.{layer}.mlp.", self.seen
        hidden = self.linear(x, at + "linear_fc1")
        if self.shape.gated:
            gate, up = seen["mlp.gate", layer], seen["mlp.up", layer] = hidden.chunk(2, -1)
            hidden = F.silu(gate) * up
        else:
            seen["mlp.fc1", layer] = hidden
            hidden = F.gelu(hidden)
        seen["mlp.act", layer] = hidden
        out = seen["mlp.out", layer] = self.linear(hidden, at + "linear_fc2")
        return out

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.w[f"{name}.weight"]
        if self.shape.gated:
            return F.rms_norm(x, weight.shape, weight, self.shape.eps)
        return F.layer_norm(x, weight.shape, weight, self.w[f"{name}.bias"], self.shape.eps)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, base 10000, of pairs (i, i + half). x: [token, batch, head, chan]."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(len(x)).float(), 10000.0 ** (-torch.arange(half).float() / half))
    cos, sin = (each.repeat(1, 2)[:, None, None] for each in (angles.cos(), angles.sin()))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
