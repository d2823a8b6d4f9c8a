"""A GPT's forward pass written out by hand, in one process, without megatron-core: what the values at sites must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    rotary_base: float = 10_000.0
    activation: Callable[[torch.Tensor], torch.Tensor] | None = None
    """None: SiLU of a gated one, else GELU."""


Change = Callable[[str, int | None, torch.Tensor], torch.Tensor]
"""What the model goes on with in place of a site's value, which is [token, batch, …] or [batch, head, query, key]."""


def plain_forward(
    tokens: npt.NDArray[np.int64],
    weights: Mapping[str, Floats],
    shape: Shape,
    layers: int,
    change: Change | None = None,
    device: str = "cpu",
) -> dict[tuple[str, int | None], Floats]:
    """By (site, layer): values in the order of axes [token, batch, …], of scores and probabilities [batch, head, query,
    key]; masked scores are left as they are. tokens: [batch, token]."""
    model = _Model({name: torch.from_numpy(value).to(device) for name, value in weights.items()}, shape, change)
    with torch.no_grad():
        model.run(torch.from_numpy(tokens).to(device), layers)
    return {key: value.contiguous().cpu().numpy() for key, value in model.seen.items()}


class _Model:
    def __init__(self, weights: dict[str, torch.Tensor], shape: Shape, change: Change | None) -> None:
        self.w, self.shape, self.change = weights, shape, change
        self.seen: dict[tuple[str, int | None], torch.Tensor] = {}

    def see(self, site: str, layer: int | None, value: torch.Tensor) -> torch.Tensor:
        if self.change is not None:
            value = self.change(site, layer, value)
        self.seen[site, layer] = value
        return value

    def run(self, tokens: torch.Tensor, layers: int) -> None:
        embedding = self.w["embedding.word_embeddings.weight"]
        x = embedding[tokens].transpose(0, 1)
        if not self.shape.gated:
            x = x + self.w["embedding.position_embeddings.weight"][: len(x)].unsqueeze(1)
        x = self.see("embed", None, x)
        for layer in range(layers):
            x = self.layer(x, layer)
        x = self.see("final_norm", None, self.norm(x, "final_layernorm"))
        self.see("logits", None, x @ self.w.get("output_layer.weight", embedding).T)

    def layer(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at = f"layers.{layer}."
        x = self.see("resid_pre", layer, x)
        x = x + self.attention(self.norm(x, at + "input_layernorm"), layer)
        x = self.see("resid_mid", layer, x)
        x = x + self.mlp(self.norm(x, at + "pre_mlp_layernorm"), layer)
        return self.see("resid_post", layer, x)

    def attention(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at, shape, see = f"layers.{layer}.self_attention.", self.shape, self.see
        mixed = self.linear(x, at + "linear_qkv").unflatten(-1, (shape.groups, shape.heads // shape.groups + 2, -1))
        q, k, v = mixed[..., :-2, :].flatten(2, 3), mixed[..., -2, :], mixed[..., -1, :]
        if shape.gated:
            q, k = see("attn.q_pre", layer, q), see("attn.k_pre", layer, k)
            q, k = (_rotated(each, shape.rotary_base) for each in (q, k))
        q, k, v = see("attn.q", layer, q), see("attn.k", layer, k), see("attn.v", layer, v)
        k, v = (each.repeat_interleave(shape.heads // shape.groups, dim=2) for each in (k, v))
        scores = torch.einsum("qbhd,kbhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        future = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
        scores = see("attn.scores", layer, scores)
        probs = see("attn.probs", layer, scores.masked_fill(future, -math.inf).softmax(-1))
        context = see("attn.context", layer, torch.einsum("bhqk,kbhd->qbhd", probs, v))
        projection = self.w[at + "linear_proj.weight"].unflatten(1, (shape.heads, -1))
        see("attn.result", layer, torch.einsum("qbhd,nhd->qbhn", context, projection))
        return see("attn.out", layer, self.linear(context.flatten(2), at + "linear_proj"))

    def mlp(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        at, see = f"layers.{layer}.mlp.", self.see
        act = self.shape.activation or (F.silu if self.shape.gated else F.gelu)
        hidden = self.linear(x, at + "linear_fc1")
        if self.shape.gated:
            gate, up = hidden.chunk(2, -1)
            hidden = act(see("mlp.gate", layer, gate)) * see("mlp.up", layer, up)
        else:
            hidden = act(see("mlp.fc1", layer, hidden))
        hidden = see("mlp.act", layer, hidden)
        return see("mlp.out", layer, self.linear(hidden, at + "linear_fc2"))

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.w[f"{name}.weight"]
        if self.shape.gated:
            return F.rms_norm(x, weight.shape, weight, self.shape.eps)
        return F.layer_norm(x, weight.shape, weight, self.w[f"{name}.bias"], self.shape.eps)


def _rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary embedding of pairs (i, i + half). x: [token, batch, head, chan]."""
    half = x.shape[-1] // 2
    positions, pairs = (torch.arange(count, device=x.device).float() for count in (len(x), half))
    angles = torch.outer(positions, base ** (-pairs / half))
    cos, sin = (each.repeat(1, 2)[:, None, None] for each in (angles.cos(), angles.sin()))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
