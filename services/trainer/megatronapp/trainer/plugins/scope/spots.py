"""The places of this rank's chunks where one can look, in the order of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from megatronapp.trainer.plugins.scope.experts import activation_place_in, place_in
from megatronapp.trainer.plugins.scope.places import (
    EXPERT,
    EXPERT_ACT,
    FIRST,
    LOSS,
    OF_CHUNK,
    OF_FUSED,
    OF_LAYER,
    QKV,
    Place,
    Spot,
    find,
)
from megatronapp.trainer.plugins.scope.saes import Sae


def spots(chunks: Sequence[torch.nn.Module], saes: Sequence[Sae] = ()) -> Iterator[Spot]:
    """All that these chunks have, in the order of a forward pass; `saes` show what the model goes on with."""
    for chunk in chunks:
        for site, place in OF_CHUNK.items():
            if site in FIRST:
                yield from _spot(site, None, place, chunk, chunk)
        layers: Any = chunk.decoder.layers  # type: ignore[union-attr]
        for layer in layers:
            yield from _of_layer(layer, chunk, saes)
        for site, place in OF_CHUNK.items():
            if site not in FIRST and (site != LOSS or chunk.post_process):
                yield from _spot(site, None, place, chunk, chunk)


def _of_layer(layer: Any, chunk: torch.nn.Module, saes: Sequence[Sae]) -> Iterator[Spot]:
    number = int(layer.layer_number) - 1
    for site, standard in OF_LAYER.items():
        place = _place_in(layer, chunk, site, standard)
        if place is not None:
            found = list(_spot(site, number, place, layer, chunk))
            encoded = [_encoded(spot, sae) for spot in found for sae in saes if sae.place == (site, number)]
            # Of a method's input the outermost wrapper is the first to see it, and comes last.
            yield from (*encoded, *found) if place.method else (*found, *encoded)


def _place_in(layer: Any, chunk: torch.nn.Module, site: str, place: Place) -> Place | None:
    """Where the site is in this layer; None: it has none."""
    if place.method == QKV and getattr(chunk, "position_embedding_type", "") != "rope":
        return None  # the same as attn.q and attn.k
    if place.half is not None and not layer.config.gated_linear_unit:
        return None
    if site in OF_FUSED and find(layer, place.path) is None:
        return OF_FUSED[site]
    if site == EXPERT_ACT:
        return activation_place_in(find(layer, place.path))
    return place_in(find(layer, place.path)) if site == EXPERT else place


def _spot(site: str, layer: int | None, place: Place, root: Any, chunk: torch.nn.Module) -> Iterator[Spot]:
    module = find(root, place.path)
    if module is not None and (not place.method or hasattr(module, place.method)):
        yield Spot(site, layer, place, module, chunk)


def _encoded(spot: Spot, sae: Sae) -> Spot:
    return replace(spot, site=sae.name, place=replace(spot.place, computed=True), sae=sae)
