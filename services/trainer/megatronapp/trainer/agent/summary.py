"""Self time, and the rows of a StepSummary out of a step's spans (docs/spans.md). Pure."""

from __future__ import annotations

import numpy as np

from megatronapp.core.trace.values import SpanKind
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Ints, Spans

STARVED = 0.1
"""A device that is behind its host by less than this share of a span at its end has waited for the host within it: with
kernels of even cost a queue that has run dry once stays dry."""
_KEYS = ("name", "chunk", "communicator", "peer")


def self_time(spans: Spans, names: SpanNames, values: Ints) -> Ints:
    """`values` (one per span, additive over time) without what the blocking spans inside took of it.

    Of nested blocking spans only the outermost counts: it contains the others. On a GPU rank the host's spans take
    nothing from the stream's, which go on meanwhile: there `enqueue` tells them apart.
    """
    name, first, blocked = (spans.columns[key] for key in ("name", "first", "blocked"))
    own = values.copy()
    rows = np.arange(len(spans))
    blocking = names.blocking[name]
    mixed = spans.enqueue.any()
    for depth in range(int(blocked.max(initial=0)) + 1):
        inner = blocking & (blocked == depth)
        # Whose blocking children sit at this depth: compute at this depth, blocking spans one further out.
        outer = blocked + blocking == depth
        for on_host in (True, False) if mixed else (None,):
            of_base = True if on_host is None else names.on_host[name] == on_host
            taken = np.concatenate(([0], np.cumsum(np.where(inner & of_base, values, 0))))
            own -= np.where(outer & of_base, taken[rows] - taken[first], 0)
    return np.maximum(own, 0)


def summarize(spans: Spans, names: SpanNames) -> dict[str, Ints]:
    """The columns of a StepSummary, one row per (operation, chunk, communicator, peer) of names that are summarized.

    Blocking rows count what they took of the rank's time (of an asynchronous operation: the waiting), all others self
    time. `step` has no row: the summary's own fields say it.
    """
    name = spans.columns["name"]
    keep = names.summarized[name]
    table = np.stack([spans.columns[key][keep] for key in _KEYS], axis=1)
    keys, group = np.unique(table, axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(keys)))

    def reduce(ufunc: np.ufunc, values: Ints) -> Ints:
        return ufunc.reduceat(values[keep][order], starts) if len(keys) else np.zeros(0, np.int64)

    duration, cpu = self_time(spans, names, spans.exposed), self_time(spans, names, spans.cpu)
    lag = np.where(spans.enqueue > 0, np.maximum(spans.start - spans.enqueue, 0), 0)
    starved = (spans.enqueue > 0) & (names.kinds[name] == SpanKind.COMPUTE)
    starved &= spans.behind < STARVED * duration
    return {
        **{key: keys[:, i] for i, key in enumerate(_KEYS)},
        "kind": names.kinds[keys[:, 0]],
        "count": reduce(np.add, np.ones_like(name)),
        "duration_sum_ns": reduce(np.add, duration),
        "duration_min_ns": reduce(np.minimum, duration),
        "duration_max_ns": reduce(np.maximum, duration),
        "cpu_sum_ns": reduce(np.add, cpu),
        "cpu_min_ns": reduce(np.minimum, cpu),
        "cpu_max_ns": reduce(np.maximum, cpu),
        "launch_lag_sum_ns": reduce(np.add, lag),
        "launch_lag_max_ns": reduce(np.maximum, lag),
        **{key: reduce(np.add, spans.columns[key]) for key in ("tokens", "length_squares", "bytes")},
        "starved_count": reduce(np.add, starved.astype(np.int64)),
        "starved_sum_ns": reduce(np.add, np.where(starved, duration, 0)),
        **{
            f"starved_{key}": reduce(np.add, np.where(starved, spans.columns[key], 0))
            for key in ("tokens", "length_squares")
        },
    }
