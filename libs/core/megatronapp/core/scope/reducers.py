"""Reductions as components that can be merged: of each shard alone, then of all together.

Components are f64, [components, *cells]; the last one is the count of values that went in, so that a cell without any
is known. Moments merge by Chan, Golub and LeVeque (1979); percentiles come from a sketch of logarithmic bins (DDSketch,
Masson et al. 2019) and are within 2 % of the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from megatronapp.core.scope.operations import Hist, Reducer, Stats

Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OF_ONE_ITSELF = (Reducer.MEAN, Reducer.MAX, Reducer.MIN, Reducer.FARTHEST, Reducer.SUM)
"""Which a single value is not changed by."""
GAMMA = 1.04
"""Of one bin's end over its begin."""
SKETCH_LEAST = 1e-9
SKETCH_BINS = 1057
"""Of each sign, from SKETCH_LEAST to 10⁹; what is smaller counts as 0."""
MOMENTS = 7
"""mean, M2, least, largest, zeros, non-finite, count; a sketch follows before the count where percentiles are asked."""
HIST_UNIT = 1e-3
HIST_REACH = math.asinh(1e4 / HIST_UNIT)


def components(how: Reducer, array: Doubles, valid: Mask, starts: Sequence[int], axis: int) -> Doubles:
    """Of groups along `axis`, which begin at `starts`. Values that are not valid count as not there."""

    def total(values: Doubles) -> Doubles:
        return np.add.reduceat(values, starts, axis)

    counts = total(valid.astype(np.float64))
    known = np.where(valid, array, 0.0)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        match how:
            case Reducer.MEAN | Reducer.SUM:
                return np.stack([total(known), counts])
            case Reducer.L2:
                return np.stack([total(known * known), counts])
            case Reducer.ENTROPY:
                positive = known > 0
                logs = np.log(np.where(positive, known, 1.0))
                return np.stack([total(np.where(positive | np.isnan(known), -known * logs, 0.0)), counts])
            case Reducer.MIN:
                return np.stack([np.minimum.reduceat(np.where(valid, array, np.inf), starts, axis), counts])
            case Reducer.MAX | Reducer.ABSMAX:
                signed = np.abs(array) if how is Reducer.ABSMAX else array
                return np.stack([np.maximum.reduceat(np.where(valid, signed, -np.inf), starts, axis), counts])
            case Reducer.FARTHEST:
                largest = np.maximum.reduceat(np.where(valid, array, -np.inf), starts, axis)
                return np.stack([largest, np.minimum.reduceat(np.where(valid, array, np.inf), starts, axis), counts])
            case Reducer.STD:
                means = total(known) / np.maximum(counts, 1)
                sizes = np.diff([*starts, array.shape[axis]])
                away = np.where(valid, array - np.repeat(means, sizes, axis), 0.0)
                return np.stack([means, total(away * away), counts])


def identity(how: Reducer, shape: tuple[int, ...]) -> Doubles:
    largest = (Reducer.MAX, Reducer.ABSMAX, Reducer.FARTHEST)
    empty = np.zeros((component_count(how), *shape))
    empty[0] = -np.inf if how in largest else np.inf if how is Reducer.MIN else 0.0
    if how is Reducer.FARTHEST:
        empty[1] = np.inf
    return empty


def component_count(how: Reducer) -> int:
    return 3 if how in (Reducer.STD, Reducer.FARTHEST) else 2


def merge(how: Reducer, one: Doubles, other: Doubles) -> Doubles:
    with np.errstate(invalid="ignore", over="ignore"):
        if how is Reducer.MIN:
            return np.stack([np.minimum(one[0], other[0]), one[1] + other[1]])
        if how in (Reducer.MAX, Reducer.ABSMAX):
            return np.stack([np.maximum(one[0], other[0]), one[1] + other[1]])
        if how is Reducer.FARTHEST:
            return np.stack([np.maximum(one[0], other[0]), np.minimum(one[1], other[1]), one[2] + other[2]])
        if how is Reducer.STD:
            return np.stack([*_merged_moments(one[0], one[1], one[2], other[0], other[1], other[2]), one[2] + other[2]])
        return one + other


def _merged_moments(
    mean: Doubles, m2: Doubles, count: Doubles, mean2: Doubles, m22: Doubles, count2: Doubles
) -> tuple[Doubles, Doubles]:
    both = np.maximum(count + count2, 1)
    apart = np.where((count > 0) & (count2 > 0), mean2 - mean, 0.0)
    means = np.where(count > 0, np.where(count2 > 0, mean + apart * count2 / both, mean), mean2)
    return means, m2 + m22 + apart * apart * count * count2 / both


def finish(how: Reducer, merged: Doubles) -> tuple[Doubles, Mask]:
    """The reduction, and which cells nothing went into."""
    counts = merged[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        match how:
            case Reducer.MEAN:
                result = merged[0] / np.maximum(counts, 1)
            case Reducer.STD:
                result = np.sqrt(merged[1] / np.maximum(counts, 1))
            case Reducer.L2:
                result = np.sqrt(merged[0])
            case Reducer.FARTHEST:
                result = np.where(-merged[1] > merged[0], merged[1], merged[0])
            case _:
                result = merged[0]
    return result, counts == 0


def needs_sketch(stats: Stats) -> bool:
    return any(name.startswith("p") for name in stats.names)


def statistics_count(stats: Stats) -> int:
    return MOMENTS + (2 * SKETCH_BINS + 1 if needs_sketch(stats) else 0)


def statistics(stats: Stats, rows: Doubles, valid: Mask) -> Doubles:
    """Of [*kept, values] over the last axis: [components, *kept]."""
    finite = valid & np.isfinite(rows)
    counts = finite.sum(-1).astype(np.float64)
    known = np.where(finite, rows, 0.0)
    means = known.sum(-1) / np.maximum(counts, 1)
    away = np.where(finite, rows - means[..., None], 0.0)
    least = np.where(finite, rows, np.inf).min(-1, initial=np.inf)
    largest = np.where(finite, rows, -np.inf).max(-1, initial=-np.inf)
    zeros = (finite & (rows == 0)).sum(-1)
    moments = [means, (away * away).sum(-1), least, largest, zeros, (valid & ~finite).sum(-1)]
    sketch = list(np.moveaxis(_sketch(rows, finite), -1, 0)) if needs_sketch(stats) else []
    return np.stack([*moments, *sketch, counts])


def statistics_identity(stats: Stats, shape: tuple[int, ...]) -> Doubles:
    empty = np.zeros((statistics_count(stats), *shape))
    empty[2], empty[3] = np.inf, -np.inf
    return empty


def merge_statistics(one: Doubles, other: Doubles) -> Doubles:
    merged = one + other
    merged[0], merged[1] = _merged_moments(one[0], one[1], one[-1], other[0], other[1], other[-1])
    merged[2], merged[3] = np.minimum(one[2], other[2]), np.maximum(one[3], other[3])
    return merged


def finish_statistics(stats: Stats, merged: Doubles) -> Doubles:
    """[*kept, statistics], in the order asked for; NaN where there is no finite value."""
    means, m2, least, largest, zeros, nonfinite = merged[:6]
    counts = merged[-1]
    known = counts > 0
    every = np.maximum(counts, 1)
    named = {
        "mean": np.where(known, means, np.nan),
        "std": np.where(known, np.sqrt(m2 / every), np.nan),
        "min": np.where(known, least, np.nan),
        "max": np.where(known, largest, np.nan),
        "absmax": np.where(known, np.maximum(np.abs(least), np.abs(largest)), np.nan),
        "l2": np.sqrt(m2 + counts * means * means),
        "zero": zeros,
        "nonfinite": nonfinite,
        "count": counts,
    }
    found = [
        named[name] if name in named else _percentile(int(name[1:]) / 100, merged[6:-1], least, largest)
        for name in stats.names
    ]
    return np.stack(found, -1)


def _sketch(rows: Doubles, finite: Mask) -> Doubles:
    """[*kept, bins]: from the largest negative magnitude over 0 to the largest positive one."""
    index = sketch_bins(np.where(finite, rows, 0.0))
    flat, kept = index.reshape(-1, index.shape[-1]), index.shape[:-1]
    found = [
        np.bincount(row[of], minlength=2 * SKETCH_BINS + 1)
        for row, of in zip(flat, finite.reshape(flat.shape), strict=True)
    ]
    return np.array(found, np.float64).reshape(*kept, 2 * SKETCH_BINS + 1)


def sketch_bins(values: Doubles) -> npt.NDArray[np.int64]:
    """Into which bin of a sketch each finite value falls."""
    with np.errstate(divide="ignore"):
        level = np.ceil(np.log(np.abs(values) / SKETCH_LEAST) / math.log(GAMMA))
    level = np.clip(np.nan_to_num(level, neginf=0), 0, SKETCH_BINS).astype(np.int64)
    return np.asarray(np.where(values < 0, SKETCH_BINS - level, SKETCH_BINS + level), np.int64)


def _percentile(quantile: float, sketch: Doubles, least: Doubles, largest: Doubles) -> Doubles:
    counts = np.moveaxis(sketch, 0, -1)
    below = np.cumsum(counts, -1)
    wanted = np.floor(quantile * np.maximum(below[..., -1] - 1, 0))
    index = (below > wanted[..., None]).argmax(-1)
    level = np.abs(index - SKETCH_BINS)
    values = np.where(level == 0, 0.0, 2 * SKETCH_LEAST * GAMMA ** (level - 1) * GAMMA / (1 + GAMMA))
    signed = np.clip(np.where(index < SKETCH_BINS, -values, values), least, largest)
    return np.asarray(np.where(below[..., -1] > 0, signed, np.nan), np.float64)


def histogram(hist: Hist, rows: Doubles, valid: Mask) -> npt.NDArray[np.uint32]:
    """Of [*kept, values] over the last axis: [*kept, bins]."""
    finite = valid & np.isfinite(rows)
    known = np.where(finite, rows, 0.0)
    if hist.low is None or hist.high is None:
        place = (np.arcsinh(known / HIST_UNIT) / HIST_REACH + 1) / 2
    else:
        place = (known - hist.low) / (hist.high - hist.low)
    index = np.clip(np.floor(place * hist.bins), 0, hist.bins - 1).astype(np.int64)
    flat = index.reshape(-1, index.shape[-1])
    found = [
        np.bincount(row[of], minlength=hist.bins) for row, of in zip(flat, finite.reshape(flat.shape), strict=True)
    ]
    return np.array(found, np.uint32).reshape(*index.shape[:-1], hist.bins)


def log_sum_exp(rows: Doubles) -> Doubles:
    """Over the last axis; −∞ of none."""
    top = rows.max(-1, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.log(np.exp(rows - safe[..., None]).sum(-1)) + safe, np.float64)
