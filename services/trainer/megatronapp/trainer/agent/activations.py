"""What a stage ran in a step, and how many activations it held at most: forwards that have run and whose backward, or W
where it is split off, has not. Pure."""

from __future__ import annotations

import numpy as np

from megatronapp.core.pipeline.pass_codes import packed
from megatronapp.core.trace.span_names import SpanName
from megatronapp.trainer.agent.span_table import Ints, Spans
from megatronapp.trainer.agent.spans import SpanNames


def peaks(spans: Spans, names: SpanNames) -> Ints:
    """Of each step: (steps,), in chunks × microbatches. 0 where forwards and what ends them do not pair, as in a step
    with an evaluation or on ranks that run forwards alone."""
    name, step = spans.columns["name"], spans.step
    steps = len(spans.bounds) - 1
    forward, backward, wgrad = (name == _number(names, each) for each in _NAMES)
    split = np.bincount(step[wgrad], minlength=steps) > 0
    change = forward.astype(np.int64) - np.where(split[step], wgrad, backward)
    held = np.concatenate(([0], np.cumsum(change)))
    begins, ends = spans.bounds[:-1], spans.bounds[1:]
    most = np.zeros(steps, np.int64)
    whole = np.flatnonzero((ends > begins) & (held[begins] == held[ends]))
    for at in whole.tolist():
        most[at] = held[begins[at] : ends[at] + 1].max() - held[begins[at]]
    return most


def chosen_orders(spans: Spans, names: SpanNames) -> list[bytes]:
    """Of each step, in the codes of core/pipeline/pass_codes.py; nothing where the stage has chosen nothing."""
    name, chunk = spans.columns["name"], spans.columns["chunk"]
    kinds = np.full(len(name), -1)
    for kind, each in enumerate(_NAMES):
        kinds[name == _number(names, each)] = kind
    chose = name == _number(names, SpanName.DECIDE)
    orders = [b""] * (len(spans.bounds) - 1)
    for at in np.unique(spans.step[chose]).tolist():
        rows = slice(spans.bounds[at], spans.bounds[at + 1])
        passes = kinds[rows] >= 0
        orders[at] = packed(kinds[rows][passes], np.maximum(chunk[rows][passes], 0))
    return orders


_NAMES = (SpanName.FORWARD, SpanName.BACKWARD, SpanName.WGRAD)


def _number(names: SpanNames, name: str) -> int:
    return names.names.index(name) if name in names.names else -1
