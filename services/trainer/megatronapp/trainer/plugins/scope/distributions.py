"""Statistics and histograms of any values along their last dimension: `core.scope.reducers` in torch."""

from __future__ import annotations

import math

import torch

from megatronapp.core.scope import reducers
from megatronapp.core.scope.operations import Hist, Stats


def statistics(stats: Stats, rows: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Sums and differences are of float64; values of float32 where the model has no more: half the bytes of a pass."""
    rows = rows if rows.dtype is torch.float64 else rows.float()
    finite = valid & rows.isfinite()
    counts = finite.sum(-1).double()
    no = ~finite
    known = rows.masked_fill(no, 0.0)
    means = known.sum(-1, dtype=torch.float64) / counts.clamp(min=1)
    away = (rows - means.unsqueeze(-1)).masked_fill_(no, 0.0)
    least = rows.masked_fill(no, math.inf).amin(-1)
    largest = rows.masked_fill(no, -math.inf).amax(-1)
    zeros = (finite & (rows == 0)).sum(-1).double()
    squares = away.square_().sum(-1)
    nonfinite = (valid & ~finite).sum(-1).double()
    moments = torch.stack([means, squares, least.double(), largest.double(), zeros, nonfinite])
    sketch = (_sketch(known, finite).movedim(-1, 0),) if reducers.needs_sketch(stats) else ()
    return torch.cat([moments, *sketch, counts.unsqueeze(0)])


def _sketch(known: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """`known`: 0 where a value is not finite. Levels are float64's, or values at their borders would change sides."""
    bins = reducers.SKETCH_BINS
    level = torch.ceil(torch.log(known.abs().double() / reducers.SKETCH_LEAST) / math.log(reducers.GAMMA))
    level = level.nan_to_num(neginf=0.0).clamp(0, bins).long()
    return _counted(torch.where(known < 0, bins - level, bins + level), finite, 2 * bins + 1).double()


def histogram(hist: Hist, rows: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    finite = valid & rows.isfinite()
    known = rows.masked_fill(~finite, 0.0)
    if hist.low is None or hist.high is None:
        place = (torch.asinh(known / reducers.HIST_UNIT) / reducers.HIST_REACH + 1) / 2
    else:
        place = (known - hist.low) / (hist.high - hist.low)
    return _counted(torch.floor(place * hist.bins).clamp(0, hist.bins - 1).long(), finite, hist.bins)


COUNTED_APART = 256


def _counted(index: torch.Tensor, counts: torch.Tensor, bins: int) -> torch.Tensor:
    """How often each bin comes along the last dimension, of entries that count: [*kept, bins], int64.

    Values lie in few bins, and a GPU adds to one place one after the other: stretches are counted apart.
    """
    apart = COUNTED_APART if index.is_cuda else 1
    filling = (0, -index.shape[-1] % apart)
    index = torch.nn.functional.pad(index, filling).unflatten(-1, (apart, -1))
    counts = torch.nn.functional.pad(counts, filling).unflatten(-1, (apart, -1))
    zeros = torch.zeros((*index.shape[:-1], bins), dtype=torch.int32, device=index.device)
    return zeros.scatter_add(-1, index, counts.int()).sum(-2)
