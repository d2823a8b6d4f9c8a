"""Measures of captured values: how far two passes are apart, what a head attends to, what adds to a logit.

All are pure functions of float arrays, computed in float64. Log-probabilities and divergences are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


def log_softmax(logits: Array) -> Doubles:
    """Along the last axis."""
    values = np.asarray(logits, np.float64)
    values = values - values.max(-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(-1, keepdims=True)))


def kl_divergence(clean: Array, other: Array) -> Doubles:
    """KL(clean ‖ other), nats, of logits [..., vocab] → [...]."""
    p, q = log_softmax(clean), log_softmax(other)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def cosine(clean: Array, other: Array) -> Doubles:
    """Along the last axis; 1 where both are zero, 0 where one is."""
    a, b = np.asarray(clean, np.float64), np.asarray(other, np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    same = np.asarray((a == b).all(-1), np.float64)
    return np.asarray(np.where(lengths > 0, (a * b).sum(-1) / np.where(lengths > 0, lengths, 1), same))


def relative_l2(clean: Array, other: Array) -> Doubles:
    """‖other − clean‖ ÷ ‖clean‖ along the last axis; 0 where both are zero."""
    a, b = np.asarray(clean, np.float64), np.asarray(other, np.float64)
    distance, length = np.linalg.norm(b - a, axis=-1), np.linalg.norm(a, axis=-1)
    return np.asarray(np.where(distance > 0, distance / np.where(length > 0, length, np.nan), 0.0))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two token sequences differ; None: one is as the other begins, and as long."""
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if place is None and len(one) != len(other):
        return min(len(one), len(other))
    return place


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, a in enumerate(one, 1):
        before, row[0] = row[0], at
        for place, b in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (a != b))
    return row[-1]


@dataclass(frozen=True, slots=True)
class HeadScores:
    """Of attention patterns [head, query, key]; each [head]."""

    entropy: Doubles
    """Mean over queries, nats."""
    previous_token: Doubles
    """Mean attention from a query to the token before it."""
    sink: Doubles
    """Mean attention to the first token, of queries after it."""
    induction: Doubles
    """Mean attention from a token that has been seen before to the one that followed it then; NaN: nothing repeats."""


def head_scores(patterns: Array, tokens: Sequence[int]) -> HeadScores:
    """`tokens`: ids of the keys. Induction as in Olsson et al., "In-context Learning and Induction Heads", 2022."""
    p = np.nan_to_num(np.asarray(patterns, np.float64))
    queries = p.shape[-2]
    logs = np.log(np.where(p > 0, p, 1.0))
    after = np.arange(1, queries)
    pairs = [
        (query, key + 1)
        for query in range(1, queries)
        for key in range(query)
        if tokens[key] == tokens[query] and key + 1 < query
    ]
    seen = sorted({query for query, _ in pairs})
    hits = np.stack([p[..., query, key] for query, key in pairs], -1).sum(-1) / len(seen) if pairs else None
    return HeadScores(
        entropy=-(p * logs).sum(-1).mean(-1),
        previous_token=p[..., after, after - 1].mean(-1) if queries > 1 else np.full(p.shape[0], np.nan),
        sink=p[..., 1:, 0].mean(-1) if queries > 1 else np.full(p.shape[0], np.nan),
        induction=np.full(p.shape[0], np.nan) if hits is None else hits,
    )


@dataclass(frozen=True, slots=True)
class Attribution:
    """What each part adds to a logit, or to a difference of two, at one token. The parts sum to `total`, but for the
    final norm's own bias."""

    total: float
    embed: float
    heads: Doubles
    """[layer, head]"""
    biases: Doubles
    """[layer]: of the attention's projection."""
    mlps: Doubles
    """[layer]"""


def direct_logit_attribution(
    embed: Array,
    heads: Array,
    attention: Array,
    mlps: Array,
    direction: Array,
    *,
    norm_weight: Array,
    epsilon: float,
    centered: bool,
) -> Attribution:
    """Direct logit attribution with the final norm's scale held as it is (Elhage et al., "A Mathematical Framework for
    Transformer Circuits", 2021).

    embed: [hidden]; heads: [layer, head, hidden]; attention (its output with bias), mlps: [layer, hidden]; direction:
    [hidden], a row of the output layer or the difference of two. `centered`: LayerNorm, else RMSNorm.
    """
    parts = [np.asarray(each, np.float64) for each in (embed, heads, attention, mlps)]
    first, of_heads, of_attention, of_mlps = parts
    final = first + of_attention.sum(0) + of_mlps.sum(0)
    if centered:
        final = final - final.mean()
    scale = np.sqrt((final * final).mean() + epsilon)
    along = np.asarray(direction, np.float64) * np.asarray(norm_weight, np.float64) / scale

    def added(values: Doubles) -> Doubles:
        values = values - values.mean(-1, keepdims=True) if centered else values
        return np.asarray(values @ along)

    return Attribution(
        total=float(added(first) + added(of_attention).sum() + added(of_mlps).sum()),
        embed=float(added(first)),
        heads=added(of_heads),
        biases=added(of_attention) - added(of_heads).sum(-1),
        mlps=added(of_mlps),
    )
