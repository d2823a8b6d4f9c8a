"""Statistics of bfloat16 values from how often each of the 65,536 bit patterns comes.

One pass over the values counts patterns; mean, deviation, extremes, zeros, numbers that are none and the sketch of
percentiles follow from the counts alone, exactly as from the values, for all sites of a step at once. Nothing waits for
the device.
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made of counts: statistics, or what is to be merged with other shards'."""

    stats: Stats
    partial: bool


def counted(values: torch.Tensor) -> torch.Tensor:
    """How often each pattern comes in a bfloat16 tensor: int32 [65536], by the pattern as a signed number, the least
    first."""
    patterns = values.reshape(-1).view(torch.int16)
    stripes = STRIPES if values.is_cuda and patterns.numel() % STRIPES == 0 else 1
    firsts, one = _stripes(values.device, stripes)
    places = torch.add(patterns.view(-1, stripes), firsts).view(-1)
    counts = torch.zeros(stripes * PATTERNS, dtype=torch.int32, device=values.device)
    counts.index_add_(0, places, one.expand_as(places))
    return counts if stripes == 1 else counts.view(stripes, PATTERNS).sum(0, dtype=torch.int32)


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
    there = known > 0
    parts = [
        means,
        (known * away.square()).sum(-1),
        torch.where(there, values, math.inf).amin(-1),
        torch.where(there, values, -math.inf).amax(-1),
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
    named = {
        "mean": means,
        "std": (m2 / counts).sqrt(),
        "min": least,
        "max": largest,
        "absmax": torch.maximum(least.abs(), largest.abs()),
    }
    found = {name: torch.where(counts > 0, value, math.nan) for name, value in named.items()}
    found |= {"l2": (m2 + counts * means * means).sqrt(), "zero": zeros, "nonfinite": nonfinite, "count": counts}
    below = merged[:, 6:-1].cumsum(-1)
    for name in stats.names:
        if name not in found:
            found[name] = _percentile(int(name[1:]) / 100, below, least, largest)
    return torch.stack([found[name] for name in stats.names], -1)


def _percentile(quantile: float, below: torch.Tensor, least: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    every = below[:, -1:]
    index = (below > (quantile * (every - 1).clamp(min=0)).floor()).to(torch.uint8).argmax(-1)
    level = (index - reducers.SKETCH_BINS).abs()
    size = 2 * reducers.SKETCH_LEAST * reducers.GAMMA ** level.double() / (1 + reducers.GAMMA)
    size = torch.where(level == 0, 0.0, size)
    value = torch.where(index < reducers.SKETCH_BINS, -size, size).clamp(least, largest)
    return torch.where(every[:, 0] > 0, value, math.nan)


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each pattern: its value, 0 where it is no finite number; whether it is one; its bin of the sketch."""
    half = PATTERNS >> 1
    values = torch.arange(-half, half, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    bins = torch.from_numpy(reducers.sketch_bins(values.numpy()))
    return values.to(device), finite.double().to(device), bins.to(device)
