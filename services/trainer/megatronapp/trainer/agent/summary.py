"""Self time, and the rows of StepSummaries out of the spans of steps (docs/spans.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from megatronapp.core.trace.values import SpanKind
from megatronapp.trainer.agent.span_table import Flags, Ints, Spans
from megatronapp.trainer.agent.spans import SpanNames

STARVED = 0.1
"""A device that is behind its host by less than this share of a span at its end has waited for the host within it: with
kernels of even cost a queue that has run dry once stays dry."""
_KEYS = ("name", "chunk", "communicator", "peer")


def _self_times(spans: Spans, names: SpanNames, values: Ints, beside_stream: Flags) -> Ints:
    """`values` (each row a measure, one per span, additive over time) without what the blocking spans inside took.

    Of nested blocking spans only the outermost counts: it contains the others. On a GPU rank the host's spans take
    nothing from the stream's, which go on meanwhile.
    """
    name, first, blocked = (spans.columns[key] for key in ("name", "first", "blocked"))
    own = values.copy()
    blocking = names.blocking[name]
    clocks = (beside_stream, ~beside_stream) if beside_stream.any() else (np.True_,)
    for depth in range(int(blocked.max(initial=0)) + 1):
        inner = blocking & (blocked == depth)
        # Whose blocking children sit at this depth: compute at this depth, blocking spans one further out.
        outer = blocked + blocking == depth
        for of_clock in clocks:
            taken = np.zeros((len(values), len(spans) + 1), np.int64)
            np.cumsum(np.where(inner & of_clock, values, 0), axis=1, out=taken[:, 1:])
            own -= np.where(outer & of_clock, taken[:, :-1] - taken[:, first], 0)
    return np.maximum(own, 0)


def _beside_stream(spans: Spans, names: SpanNames) -> Flags:
    """The host's spans of steps that have a GPU stream's, too, which `enqueue` tells."""
    if not spans.enqueue.any():
        return np.zeros(len(spans), np.bool_)
    of_gpu = np.zeros(len(spans.bounds) - 1, np.bool_)
    of_gpu[spans.step[spans.enqueue != 0]] = True
    return names.on_host[spans.columns["name"]] & np.repeat(of_gpu, np.diff(spans.bounds))


def summarize(spans: Spans, names: SpanNames) -> tuple[dict[str, Ints], Ints]:
    """The columns of the steps' StepSummaries, one row per (step, operation, chunk, communicator, peer) of names that
    are summarized; and where in them each step's rows begin and the last one's end.

    Blocking rows count what they took of the rank's time (of an asynchronous operation: the waiting), all others self
    time. `step` has no row: the summary's own fields say it.
    """
    rows = np.flatnonzero((names.summarized | names.blocking)[spans.columns["name"]])
    beside_stream = _beside_stream(spans, names)[rows]
    return _summarized(spans.only(rows), names, beside_stream)


def _summarized(spans: Spans, names: SpanNames, beside_stream: Flags) -> tuple[dict[str, Ints], Ints]:
    """Of spans that are summarized or take something from one that is."""
    name = spans.columns["name"]
    duration, cpu = _self_times(spans, names, np.stack((spans.exposed, spans.cpu)), beside_stream)
    lag = np.where(spans.enqueue > 0, np.maximum(spans.start - spans.enqueue, 0), 0)
    starved = (spans.enqueue > 0) & (names.kinds[name] == SpanKind.COMPUTE) & (spans.behind < STARVED * duration)
    work = {key: spans.columns[key] for key in ("tokens", "length_squares", "bytes")}
    summed = {
        "count": np.ones_like(name),
        "duration_sum_ns": duration,
        "cpu_sum_ns": cpu,
        "launch_lag_sum_ns": lag,
        **work,
        "starved_count": starved,
        "starved_sum_ns": duration * starved,
        **{f"starved_{key}": work[key] * starved for key in ("tokens", "length_squares")},
    }
    lowest = {"duration_min_ns": duration, "cpu_min_ns": cpu}
    highest = {"duration_max_ns": duration, "cpu_max_ns": cpu, "launch_lag_max_ns": lag}
    rows, starts = _groups(spans, names)
    keys = {key: spans.columns[key][rows[starts]] for key in _KEYS}
    bounds = np.searchsorted(spans.step[rows[starts]], np.arange(len(spans.bounds)))
    return {
        **keys,
        "kind": names.kinds[keys["name"]],
        **_reduced(np.add, summed, rows, starts),
        **_reduced(np.minimum, lowest, rows, starts),
        **_reduced(np.maximum, highest, rows, starts),
    }, bounds


def _groups(spans: Spans, names: SpanNames) -> tuple[Ints, Ints]:
    """(the rows that are summarized, in order of step and _KEYS; where in them a new group begins)."""
    kept = np.flatnonzero(names.summarized[spans.columns["name"]])
    keys = np.stack([column[kept] for column in (spans.step, *(spans.columns[key] for key in _KEYS))])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    new = np.ones(len(kept), np.bool_)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return kept[order], np.flatnonzero(new)


def _reduced(ufunc: np.ufunc, columns: Mapping[str, Ints], rows: Ints, starts: Ints) -> dict[str, Ints]:
    """All columns in one call: steps have few rows, and a call costs more than they do."""
    table = np.array(list(columns.values()), np.int64)[:, rows]
    return dict(zip(columns, ufunc.reduceat(table, starts, axis=1) if len(starts) else table, strict=True))
