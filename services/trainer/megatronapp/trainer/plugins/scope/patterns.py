"""Statistics of bfloat16 values from how often each of the 65,536 bit patterns comes.

One pass over the values counts patterns; mean, deviation, extremes, zeros, numbers that are none and the sketch of
percentiles follow from the counts alone, exactly as from the values, for all sites of a step at once. Nothing waits for
the device: so no `torch.where` with a number, which is brought there as a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from megatronapp.core.scope import reducers
from megatronapp.core.scope.operations import Stats

PATTERNS = 1 << 16
STRIPES = 16
"""A GPU adds to one place one after the other, and values lie in few places: neighbours count apart."""
VALUES = 8
"""That are counted in one tally: on a GPU 32 MiB."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made of counts: statistics, or what is to be merged with other shards'."""

    stats: Stats
    partial: bool


class Tally:
    """How often each pattern comes in several values of which the same is wanted. Their places are zeroed together, and
    stripes added together: of that, a value costs two operations of its own."""

    def __init__(self, wanted: Wanted, stripes: int, device: torch.device) -> None:
        self.wanted, self.stripes = wanted, stripes
        self.rows = 0
        self._striped: torch.Tensor | None = torch.zeros(VALUES, stripes * PATTERNS, dtype=torch.int32, device=device)
        self._counts: torch.Tensor | None = None

    @property
    def open(self) -> bool:
        return self._striped is not None

    def add(self, patterns: torch.Tensor) -> int:
        """Count these, of an open tally; the row that they are counted in. The last one closes it."""
        assert self._striped is not None  # noqa: S101
        row, self.rows = self.rows, self.rows + 1
        firsts, one = _stripes(patterns.device, self.stripes)
        places = torch.add(patterns.view(-1, self.stripes), firsts).view(-1)
        self._striped[row].index_add_(0, places, one.expand_as(places))
        if self.rows == VALUES:
            self.counts()
        return row

    def counts(self) -> torch.Tensor:
        """Of all rows so far, int32 [rows, 65536], by the pattern as a signed number, the least first. Closes
        it."""
        if self._striped is not None:
            striped, self._striped = self._striped[: self.rows].view(self.rows, self.stripes, PATTERNS), None
            self._counts = striped[:, 0] if self.stripes == 1 else striped.sum(1, dtype=torch.int32)
        assert self._counts is not None  # noqa: S101
        return self._counts


@dataclass(frozen=True, slots=True)
class Counted:
    tally: Tally
    row: int

    @property
    def nbytes(self) -> int:
        return 4 * PATTERNS


_open: dict[torch.device, Tally] = {}
"""Of each device the one that is counted in."""


def counted(values: torch.Tensor, wanted: Wanted) -> Counted:
    """How often each pattern comes in a bfloat16 tensor, which is read at once."""
    patterns = values.reshape(-1).view(torch.int16)
    stripes = STRIPES if values.is_cuda and patterns.numel() % STRIPES == 0 else 1
    tally = _open.get(values.device)
    if tally is None or not tally.open or tally.stripes != stripes or tally.wanted != wanted:
        tally = _open[values.device] = Tally(wanted, stripes, values.device)
    return Counted(tally, tally.add(patterns))


@lru_cache(maxsize=16)
def _stripes(device: torch.device, stripes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each stripe's pattern 0 is counted; a one."""
    half = PATTERNS >> 1
    firsts = torch.arange(half, half + stripes * PATTERNS, PATTERNS, dtype=torch.int32, device=device)
    return firsts, torch.ones((), dtype=torch.int32, device=device)


def made(wanted: Wanted, counts: torch.Tensor) -> torch.Tensor:
    """[sites, 65536] → [sites, components], float64, or [sites, statistics], float32."""
    found = statistics(wanted.stats, counts)
    return found if wanted.partial else _finished(wanted.stats, found).float()


def statistics(stats: Stats, counts: torch.Tensor) -> torch.Tensor:
    """`reducers.statistics` of what was counted: [sites, 65536] → [sites, components], float64."""
    values, finite, levels = _tables(counts.device)
    counts = counts.double()
    known = counts * finite
    every = known.sum(-1)
    means = known @ values / every.clamp(min=1)
    away = values - means.unsqueeze(-1)
    absent = known == 0
    parts = [
        means,
        (known * away.square()).sum(-1),
        values.masked_fill(absent, math.inf).amin(-1),
        values.masked_fill(absent, -math.inf).amax(-1),
        known[:, 0] + known[:, PATTERNS >> 1],  # of both signs
        (counts - known).sum(-1),
    ]
    sketch = []
    if reducers.needs_sketch(stats):
        bins = known.new_zeros(len(known), 2 * reducers.SKETCH_BINS + 1)
        sketch.append(bins.index_add_(1, levels, known))
    return torch.cat([torch.stack(parts, -1), *sketch, every.unsqueeze(-1)], -1)


def _finished(stats: Stats, merged: torch.Tensor) -> torch.Tensor:
    """`reducers.finish_statistics`, on the device."""
    means, m2, least, largest, zeros, nonfinite = merged[:, :6].unbind(-1)
    counts = merged[:, -1]
    quantiles, everywhere = _columns(stats, merged.device)
    percentiles = _percentiles(quantiles, merged, least, largest).unbind(-1) if len(quantiles) else ()
    named = {
        "mean": lambda: means,
        "std": lambda: (m2 / counts).sqrt(),
        "min": lambda: least,
        "max": lambda: largest,
        "absmax": lambda: torch.maximum(least.abs(), largest.abs()),
        "l2": lambda: (m2 + counts * means * means).sqrt(),
        "zero": lambda: zeros,
        "nonfinite": lambda: nonfinite,
        "count": lambda: counts,
    }
    left = iter(percentiles)
    found = torch.stack([named[name]() if name in named else next(left) for name in stats.names], -1)
    return found.masked_fill_((counts == 0).unsqueeze(-1) & ~everywhere, math.nan)


def _percentiles(
    quantiles: torch.Tensor, merged: torch.Tensor, least: torch.Tensor, largest: torch.Tensor
) -> torch.Tensor:
    """[sites, quantiles]"""
    below = merged[:, 6:-1].cumsum(-1)
    wanted = (quantiles * (below[:, -1:] - 1).clamp(min=0)).floor()
    index = torch.searchsorted(below, wanted, right=True)
    level = (index - reducers.SKETCH_BINS).abs()
    size = 2 * reducers.SKETCH_LEAST * reducers.GAMMA ** level.double() / (1 + reducers.GAMMA)
    size = size.masked_fill_(level == 0, 0.0)
    value = torch.where(index < reducers.SKETCH_BINS, -size, size)
    return value.clamp(least.unsqueeze(-1), largest.unsqueeze(-1))


@lru_cache(maxsize=16)
def _columns(stats: Stats, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantiles that are asked for; of each statistic whether there is one of no values, too."""
    quantiles = [int(name[1:]) / 100 for name in stats.names if name.startswith("p")]
    everywhere = [name in {"l2", "zero", "nonfinite", "count"} for name in stats.names]
    return torch.tensor(quantiles, dtype=torch.float64, device=device), torch.tensor(everywhere, device=device)


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each pattern: its value, 0 where it is no finite number; whether it is one; its bin of the sketch."""
    half = PATTERNS >> 1
    values = torch.arange(-half, half, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    bins = torch.from_numpy(reducers.sketch_bins(values.numpy()))
    return values.to(device), finite.double().to(device), bins.to(device)
