"""Sites that no module of the model gives: made of others, of no more than the first slices of an expression leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import Hist, Operation, Stats, Take
from megatronapp.core.scope.sites import Axis
from megatronapp.trainer.plugins.scope.cells import Chosen, chosen, of_axes, sliced
from megatronapp.trainer.plugins.scope.reduce import Part, reduce_part, take_of
from megatronapp.trainer.plugins.scope.reduced import Reduced
from megatronapp.trainer.plugins.scope.saes import Sae

MAX_RESULTS = 1 << 24


def reduce_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    scale: float,
    softmax: bool,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of scores or, with softmax, probabilities, which are made of no more batch entries, heads and
    queries than the first slices leave. Causal. query: [batch, head, query, chan], key: [batch, group, key, chan] of
    this rank; `axes` are the site's: batch, head, query, key."""
    batch, head, rows, columns = of_axes(tuple(axes))
    inner = of_axes((Axis("chan", query.shape[-1]),))
    entries, heads, queries = np.arange(query.shape[0]), np.arange(query.shape[1]), rows.positions
    asked, left = Part(query, (batch, head, rows, *inner)), list(operations)
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "head", "query"}:
        left.pop(0)
        index = sliced(asked.axes[asked.index(take.axis)], take)[0].indexes
        entries = entries[index] if take.axis == "batch" else entries
        heads = heads[index] if take.axis == "head" else heads
        queries = queries[index] if take.axis == "query" else queries
        asked = take_of(asked, take)
    if not asked.array.numel():
        return None
    groups = heads // (query.shape[1] // key.shape[1])
    keys = chosen(tuple(groups)).take(chosen(tuple(entries)).take(key, 0), 1)
    scores = asked.array.float() @ keys.float().transpose(-1, -2) * scale
    if rows.size == 1:  # a generation's new token sees all keys
        seen = Part(scores.softmax(-1) if softmax else scores, (*asked.axes[:3], columns), own=True)
        return reduce_part(seen, left, partial=partial)
    first = key.shape[2] - rows.size  # with a cache the keys begin before the queries
    last_seen = chosen(tuple(queries)).numbers(query.device).unsqueeze(-1) + first
    future = torch.arange(key.shape[2], device=query.device) > last_seen
    values = scores.masked_fill(future, -math.inf).softmax(-1) if softmax else scores
    return reduce_part(Part(values, (*asked.axes[:3], columns), future.expand(values.shape)), left, partial=partial)


def reduce_head_results(
    context: torch.Tensor,
    weight: torch.Tensor,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of what each head adds to the residual stream, context · weight, without the bias, made of no
    more batch entries, tokens and heads than the first slices leave. context: [batch, token, head, chan], weight:
    [hidden, head, chan] of this rank; `axes` are the site's: batch, token, head, chan (hidden)."""
    batch, token, head, hidden = of_axes(tuple(axes))
    inner = of_axes((Axis("inner", context.shape[-1]),))
    asked = Part(context, (batch, token, head, *inner))
    left, heads = list(operations), np.arange(context.shape[2])
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "token", "head"}:
        left.pop(0)
        if take.axis == "head":
            heads = heads[sliced(asked.axes[asked.index("head")], take)[0].indexes]
        asked = take_of(asked, take)
    values = asked.array.shape[:3].numel() * weight.shape[0]
    if not values:
        return None
    if values > MAX_RESULTS:
        raise DataError(f"{values} values of heads; at most {MAX_RESULTS}: take fewer rows, such as last(1)")
    result = torch.einsum("bthc,dhc->bthd", asked.array.float(), chosen(tuple(heads)).take(weight, 1).float())
    return reduce_part(Part(result, (*asked.axes[:3], hidden), own=True), left, partial=partial)


def reduce_expert_results(
    values: torch.Tensor,
    rows: torch.Tensor,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    each_once: bool,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of what each expert makes of its tokens, of no more batch entries, tokens and experts
    than the first slices leave; where a token goes to others there is nothing. values: [row, chan], rows: [batch,
    token, expert], the row of each, −1: none; `each_once`: there are no other rows, so that what is of all values at
    once needs no order; `axes` are the site's: batch, token, expert, chan."""
    *outer, channels = of_axes(tuple(axes))
    asked, left = Part(rows, tuple(outer)), list(operations)
    if each_once and len(left) == 1 and _is_of_all(left[0]):
        of_rows = of_axes((Axis("row", len(values)), Axis("chan", values.shape[-1])))
        return reduce_part(Part(values, of_rows), left, partial=partial)
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "token", "expert"}:
        left.pop(0)
        asked = take_of(asked, take)
    count = asked.array.numel() * values.shape[-1]
    if not count:
        return None
    if count > MAX_RESULTS:
        raise DataError(f"{count} values of experts; at most {MAX_RESULTS}: take fewer rows, such as last(1)")
    some = values if len(values) else values.new_zeros(1, values.shape[-1])
    result = some[asked.array.clamp(min=0)].float()
    absent = (asked.array < 0).unsqueeze(-1).expand(result.shape)
    return reduce_part(Part(result, (*asked.axes, channels), absent, own=True), left, partial=partial)


def _is_of_all(operation: Operation) -> bool:
    return isinstance(operation, Hist) or (isinstance(operation, Stats) and not operation.over)


def reduce_features(
    rows: torch.Tensor,
    sae: Sae,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of what an SAE makes of rows [batch, token, hidden], of no more rows and features than the
    first slices leave; `axes` are the site's: batch, token, chan (features)."""
    batch, token, features = of_axes(tuple(axes))
    asked = Part(rows, (batch, token, *of_axes((Axis("hidden", rows.shape[-1]),))))
    left, columns = list(operations), Chosen.of(np.arange(sae.features))
    while left and isinstance(take := left[0], Take):
        left.pop(0)
        if take.axis == "chan":
            kept, features = sliced(features, take)
            columns = chosen(tuple(columns.indexes[kept.indexes]))
        else:
            asked = take_of(asked, take)
    values = asked.array.shape[:2].numel() * (sae.features if sae.k else len(columns.indexes))
    if not values:
        return None
    if values > MAX_RESULTS:
        raise DataError(f"{values} values of features; at most {MAX_RESULTS}: take fewer rows, such as last(8)")
    result = sae.encode(asked.array, columns.take)
    return reduce_part(Part(result, (*asked.axes[:2], features), own=True), left, partial=partial)
