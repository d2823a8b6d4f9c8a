"""What the connected ranks of a run are together: one model, its sites whole, and who holds which part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from megatronapp.core.scope.sites import Axis, Site, matching, whole
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.producers import Producer
from megatronapp.v1 import scope_pb2, trace_pb2

LOGITS = "logits"


class Structure:
    """A view of producers by rank, which others change."""

    def __init__(self, producers: Mapping[int, Producer]) -> None:
        self._producers = producers
        self._sites: list[Site] | None = None

    def changed(self) -> None:
        """Ranks came, left, or have other sites."""
        self._sites = None

    def __bool__(self) -> bool:
        return bool(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    @property
    def model(self) -> scope_pb2.ScopeModel:
        return self._first.model if self._producers else scope_pb2.ScopeModel()

    @property
    def sizes(self) -> trace_pb2.ParallelSizes:
        return self._first.placement.sizes if self._producers else trace_pb2.ParallelSizes()

    @property
    def replicas(self) -> int:
        """Data-parallel ones, from 1."""
        return max(self.sizes.data, 1)

    @property
    def roles(self) -> list[str]:
        return sorted(set().union(*(producer.roles for producer in self._producers.values())))

    @property
    def _first(self) -> Producer:
        return self._producers[min(self._producers)]

    def sites(self) -> list[Site]:
        """Whole, over all stages."""
        if self._sites is None:
            self._sites = whole(site for producer in self._producers.values() for site in producer.sites.values())
        return self._sites

    def layers(self) -> int:
        """One more than the last that any rank has, or as many as the model says."""
        last = max((max(site.layers, default=-1) for site in self.sites()), default=-1)
        return max(last + 1, min(self.model.layers, 1 << 16))

    def find(self, pattern: str) -> str:
        """The one site that a selector means. Raises RefusedError."""
        names = list(dict.fromkeys(site.name for site in self.sites()))
        found = matching(pattern, names)
        if len(found) == 1:
            return found[0]
        if found:
            raise RefusedError("invalid", f"{pattern} means {len(found)} sites", f"one of {', '.join(found[:12])}")
        near = get_close_matches(pattern, names, 3, 0.5) or names[:12]
        raise RefusedError(
            "unknown_site", f"the model has no site {pattern}", f"it has {', '.join(near)}" if near else ""
        )

    def axes(self, name: str, *, generates: bool) -> tuple[Axis, ...]:
        """As any rank has them; () where none has the site."""
        for producer in self._producers.values():
            site = producer.site(name, generates=generates)
            if site is not None:
                return site.axes
        return ()

    def having(self, name: str, *, generates: bool) -> list[tuple[Producer, Site]]:
        """By rank."""
        found = []
        for rank in sorted(self._producers):
            site = self._producers[rank].site(name, generates=generates)
            if site is not None:
                found.append((self._producers[rank], site))
        return found

    def expected(self) -> dict[str, int]:
        """Sizes of axes that change, as the model's own."""
        model = self.model
        tokens = min(model.sequence_length, 1 << 20) or 1
        batch = min(model.micro_batch_size, 1 << 16) or 1
        return {"batch": batch, "token": tokens, "query": tokens, "key": tokens}

    def extents(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        expected = self.expected()
        return tuple(axis.size or expected.get(axis.name, 1) for axis in axes)


def layers_of(site: Site, chosen: Sequence[int]) -> frozenset[int]:
    return frozenset(site.layers) & frozenset(chosen)
