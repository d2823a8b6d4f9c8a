"""The next token of each row. What a row draws depends on its seed, the position and the model's logits alone: not on
the batch, the layout, or any generator whose state training relies on."""

from __future__ import annotations

import hashlib

import torch

from megatronapp.core.generation import Sampling


def uniform(seed: int, position: int) -> float:
    """In [0, 1), a multiple of 2^-52: so a product with it stays below the other factor."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 12) / 2**52)


def decayed_top_p(sampling: Sampling, drawn: int) -> float:
    """Of a row that has drawn so many tokens."""
    return max(sampling.top_p * sampling.top_p_decay**drawn, sampling.top_p_bound)


def draw(logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """One id for each row of `logits` [rows, vocabulary] by inversion: the first id, in their order, up to which the
    filtered probabilities sum to more than the row's uniform number. `uniforms` and `top_p`: float64 [rows]."""
    if sampling.greedy:
        return logits.argmax(-1)
    probabilities = filtered(logits.double() / sampling.temperature, sampling.top_k, top_p)
    cumulative = probabilities.cumsum(-1)
    at = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)
    return at.squeeze(-1).clamp(max=logits.size(-1) - 1)


def filtered(logits: torch.Tensor, top_k: int, top_p: torch.Tensor) -> torch.Tensor:
    """Probabilities [rows, vocabulary] of the ids that stay, 0 for the others; not normalized again. First the k
    likeliest stay (0: all), then of these the likeliest up to the one with which their probabilities reach top_p."""
    probabilities = logits.softmax(-1)
    if not top_k and bool((top_p >= 1).all()):
        return probabilities
    kept = min(top_k or logits.size(-1), logits.size(-1))
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered[:, kept:] = 0
    ordered /= ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    ordered[(before >= top_p[:, None]) & (before > 0)] = 0
    return torch.zeros_like(probabilities).scatter_(-1, ids, ordered)
