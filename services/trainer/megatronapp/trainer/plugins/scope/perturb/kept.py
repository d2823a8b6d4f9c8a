"""What generations have left of themselves on this rank, for interventions of later ones.

Each rank keeps its own shard of what passes its sites, and takes from it for the same shard: patching moves no value
between ranks, and is exact in every layout. Whether a source has what is asked for is judged by the model as a whole,
so that all ranks come to the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.operations import Selector
from megatronapp.core.scope.sites import Axis, Coordinates, matching, standard_sites
from megatronapp.trainer.plugins.scope.places import OF_CHUNK, OF_LAYER, Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Capture, Reader

MAX_VALUES = 1 << 28
"""Of the whole model that are kept, over all generations; the oldest ones go."""
SITES = (*OF_LAYER, *OF_CHUNK)
Key = tuple[str, int | None]
"""Site and layer."""


@dataclass(slots=True)
class _Source:
    selectors: tuple[Selector, ...]
    rows: int
    values: int
    parts: dict[Key, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)
    """First token of each pass, and this rank's values."""
    means: dict[Key, torch.Tensor] = field(default_factory=dict)

    def keeps(self, site: str, layer: int | None, layers: int) -> bool:
        return any(
            bool(matching(selector.site, (site,)))
            and (not selector.layers if layer is None else layer in selector.numbers(layers))
            for selector in self.selectors
        )


class Kept:
    """Changes between two passes of a generation alone, alike on all ranks."""

    def __init__(self, shard: Shard) -> None:
        self._layers = shard.model.layers
        everywhere = Coordinates(layers=(0,))
        self._axes = {site.name: site.axes for site in standard_sites(shard.generating.model, everywhere)}
        self._sources: dict[str, _Source] = {}
        """The oldest first."""
        self._open = ""
        """The generation whose pass is under way, as far as it keeps anything."""

    def axes(self, site: str) -> tuple[Axis, ...]:
        """As the whole model has them; () where it has no such site."""
        return self._axes.get(site, ())

    def begin(self, request: GenerationRequest, rows: int, positions: int, *, in_use: Collection[str] = ()) -> None:
        """`in_use`: whose values have to stay. Raises DataError, on all ranks, for what the model does not have or
        what is too much."""
        if not request.keep:
            return
        selectors = tuple(parse(text).selector for text in request.keep)
        values = sum(self._values(selector, rows, positions) for selector in selectors)
        if values > MAX_VALUES:
            raise DataError(f"{values} values to keep; at most {MAX_VALUES}: keep fewer sites or layers")
        self._sources.pop(request.id, None)
        for name in list(self._sources):
            if values + sum(source.values for source in self._sources.values()) <= MAX_VALUES:
                break
            if name not in in_use:
                del self._sources[name]
        if values + sum(source.values for source in self._sources.values()) > MAX_VALUES:
            raise DataError("what other generations have kept is in use: ask again when they have ended")
        self._sources[request.id] = _Source(selectors, rows, values)

    def require(self, source: str, site: str, layer: int | None, rows: int | None) -> None:
        """Raises DataError where these values are not kept; `rows`: of the request that is to take them row by row."""
        found = self._sources.get(source)
        if found is None:
            raise DataError(f"no generation {source!r:.40} has kept anything: run it first, with keep")
        if not found.keeps(site, layer, self._layers):
            where = site if layer is None else f"layers[{layer}].{site}"
            raise DataError(f"generation {source!r:.40} has not kept {where}: add it to its keep")
        if rows is not None and found.rows not in (1, rows):
            raise DataError(f"generation {source!r:.40} has {found.rows} rows, this one {rows}: give one, or as many")

    def pass_begin(self, request: str) -> bool:
        """Whether anything of this pass is kept."""
        self._open = request if request in self._sources else ""
        return bool(self._open)

    def wanted(self, spot: Spot) -> list[Reader]:
        keeps = any(source.keeps(spot.site, spot.layer, self._layers) for source in self._sources.values())
        return [self._read] if keeps and not spot.place.computed else []

    def patched(self, value: torch.Tensor, spot: Spot, source: str, end: int, moved: Mapping[int, int]) -> torch.Tensor:
        """The value, whose last token is before position `end`, with the source's in place of it where it has any.
        `moved`: by position the source's that comes there; empty: the same ones."""
        axes = [names[0] for names in spot.place.dims]
        token = next(at for at, name in enumerate(axes) if name in ("token", "query"))
        first, new = end - value.shape[token], value.clone()
        for begin, part in self._parts(source, spot):
            last = begin + part.shape[token]
            for here, there, count in _stretches(first, end, begin, last, moved):
                target, given = new.narrow(token, here - first, count), part.narrow(token, there - begin, count)
                if "key" in axes:
                    at = axes.index("key")
                    keys = min(target.shape[at], given.shape[at])
                    target, given = target.narrow(at, 0, keys), given.narrow(at, 0, keys)
                target.copy_(given.expand_as(target))
        return new

    def mean(self, spot: Spot, source: str) -> torch.Tensor:
        """Over rows and tokens, of a shape that broadcasts against the site's; float64."""
        axes = [names[0] for names in spot.place.dims]
        if "query" in axes:
            raise DataError(f"{spot.site} has no mean over its tokens: take another site")
        key, kept = (spot.site, spot.layer), self._sources.get(source)
        assert kept is not None  # noqa: S101  (`require` was asked)
        if key not in kept.means:
            over = tuple(at for at, name in enumerate(axes) if name in ("token", "batch"))
            parts = [part for _, part in kept.parts.get(key, ())]
            count = sum(math.prod(part.shape[at] for at in over) for part in parts)
            total = torch.stack([part.double().sum(over, keepdim=True) for part in parts]).sum(0)
            kept.means[key] = total / count
        return kept.means[key]

    def _parts(self, source: str, spot: Spot) -> list[tuple[int, torch.Tensor]]:
        found = self._sources.get(source)
        return found.parts.get((spot.site, spot.layer), []) if found else []

    def _read(self, capture: Capture) -> None:
        source = self._sources.get(self._open)
        spot = capture.spot
        if source is None or capture.request != self._open or not source.keeps(spot.site, spot.layer, self._layers):
            return
        source.parts.setdefault((spot.site, spot.layer), []).append((capture.first_token, capture.value.clone()))
        source.means.pop((spot.site, spot.layer), None)

    def _values(self, selector: Selector, rows: int, positions: int) -> int:
        """Of the whole model. Raises DataError for a selector that means nothing here."""
        sites = matching(selector.site, [site for site in SITES if (site in OF_LAYER) == bool(selector.layers)])
        layers = len(selector.numbers(self._layers)) if selector.layers else 1
        if not sites or not layers:
            raise DataError(f"{selector} is nothing that the model has and that could be kept")
        sizes = {"batch": rows, "token": positions, "query": positions, "key": positions}
        return layers * sum(
            math.prod(sizes.get(axis.name, axis.size) for axis in self._axes[site])
            for site in sites
            if site in self._axes
        )


def _stretches(first: int, end: int, begin: int, last: int, moved: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Positions from first to end for which the source has values from begin to last: where they are, where it has
    them, how many in a row."""
    if not moved:
        low, high = max(first, begin), min(end, last)
        if low < high:
            yield low, low, high - low
    for here, there in moved.items():
        if first <= here < end and begin <= there < last:
            yield here, there, 1
