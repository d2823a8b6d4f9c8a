"""Parameters, and what the optimizer keeps of each, as sites: `weight.NAME` and `opt.STATE.NAME`, by the name that the
parameter has in the whole model, without its layer.

Tensor ranks have stretches of an axis, stages layers, expert ranks experts of their own. A distributed optimizer keeps
on each data-parallel rank some stretch of the flat parameter, wherever that begins: shown as one part along an axis
`shard`, with the cells of the others masked, so that parts merge as those of any split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from megatronapp.core.scope.operations import SHARD
from megatronapp.core.scope.sites import MAX_SIZE, STATE, WEIGHT, Axis, Pass, Rule, Site, Split
from megatronapp.trainer.plugins.scope.optimizer_states import Stretch
from megatronapp.trainer.plugins.scope.places import Dims, Place, Spot, weight_spots
from megatronapp.trainer.plugins.scope.shards import DTYPES, Shard
from megatronapp.trainer.plugins.scope.weights import Weight

OUT_IN = ("out", "in")
"""Rows and columns, as torch has them; vectors have rows alone."""


_OF_MANY_EXPERTS = ("experts.weight1", "experts.weight2")


@dataclass(frozen=True, slots=True)
class Shown:
    """The value and which of its cells others have; None: there is no value yet."""

    value: torch.Tensor
    absent: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank keeps, at no place in a forward pass."""

    spot: Spot
    site: Site
    """With this layer alone."""
    read: Callable[[], Shown | None]


def held_ends(chunks: Sequence[torch.nn.Module], shard: Shard) -> list[Held]:
    """The last stage's, by what they are to its logits."""
    return [Held(spot, shard.sites[spot.site], partial(Shown, value)) for spot, value in weight_spots(chunks)]


def held_weights(weights: Iterable[Weight]) -> list[Held]:
    """One of each, but for what is in no form that a site can have."""
    return _distinct(_weight(each) for each in weights if _fits(each))


def held_states(weights: Iterable[Weight], states: Callable[[Weight], Iterable[Stretch]]) -> list[Held]:
    return _distinct(_state(each, stretch) for each in weights if _fits(each) for stretch in states(each))


def sites_of(held: Sequence[Held]) -> dict[str, Site]:
    """By name, of all layers."""
    found: dict[str, Site] = {}
    for each in held:
        before = found.get(each.site.name)
        layers = (*(before.layers if before else ()), *each.site.layers)
        found[each.site.name] = replace(each.site, layers=tuple(sorted(layers)))
    return found


def with_sites(shard: Shard, held: Sequence[Held], *, weights: bool) -> Shard:
    """What axes are known by in a training; without `weights` it shows none."""
    sites = {**shard.sites, **sites_of(held)}
    return replace(shard, sites={name: sites[name] for name in sites if weights or not name.startswith(WEIGHT)})


def generating(shard: Shard, held: Sequence[Held]) -> Shard:
    """The same while it generates, of parameters alone."""
    sites = sites_of([each for each in held if not each.site.name.startswith(STATE)])
    own = {name: replace(site, passes=(Pass.GENERATE,)) for name, site in sites.items()}
    return replace(shard.generating, sites={**shard.generating.sites, **own})


def _fits(weight: Weight) -> bool:
    """Matrices and vectors; those of experts that are one tensor have no axis for them."""
    shape = weight.parameter.shape
    return 1 <= len(shape) <= len(OUT_IN) and max(shape) <= MAX_SIZE and not weight.short.endswith(_OF_MANY_EXPERTS)


def _axes(weight: Weight) -> tuple[Axis, ...]:
    axes = []
    for dim, size in enumerate(weight.parameter.shape):
        part, parts = weight.split(dim)
        rule = Rule.TENSOR_PAIRS if weight.gated and dim == 0 else Rule.TENSOR
        axes.append(Axis(OUT_IN[dim], size * parts, (Split(rule, part, parts),) if parts > 1 else ()))
    return tuple(axes)


def _weight(weight: Weight) -> Held:
    parameter = weight.parameter
    site = _site(f"{WEIGHT}{weight.short}", weight, _axes(weight), parameter.dtype)
    return Held(_spot(site, weight), site, lambda: Shown(parameter.detach()))


def _state(weight: Weight, stretch: Stretch) -> Held:
    axes = _axes(weight)
    if stretch.parts > 1:
        axes = (Axis(SHARD, stretch.parts, (Split(Rule.DATA, stretch.part, stretch.parts),)), *axes)
    site = _site(f"{STATE}{stretch.name}.{weight.short}", weight, axes, torch.float32)
    shape = weight.parameter.shape
    return Held(_spot(site, weight), site, lambda: _spread(stretch, shape))


def _spread(stretch: Stretch, shape: Sequence[int]) -> Shown | None:
    """In the form of the parameter."""
    values = stretch.read()
    if values is None:
        return None
    if stretch.parts == 1:
        return Shown(values.detach().view(tuple(shape)))
    cells = math.prod(shape)
    whole = values.new_zeros(cells)
    absent = torch.ones(cells, dtype=torch.bool, device=values.device)
    whole[stretch.first : stretch.first + values.numel()] = values.detach().view(-1)
    absent[stretch.first : stretch.first + values.numel()] = False
    return Shown(whole.view(1, *shape), absent.view(1, *shape))


def _site(name: str, weight: Weight, axes: tuple[Axis, ...], dtype: torch.dtype) -> Site:
    layers = () if weight.layer is None else (weight.layer,)
    return Site(name, axes, layers, DTYPES.get(dtype, "f32"))


def _spot(site: Site, weight: Weight) -> Spot:
    dims: Dims = tuple((axis.name,) for axis in site.axes)
    nowhere = torch.nn.Module()
    return Spot(site.name, weight.layer, Place("", "parameter", dims), nowhere, nowhere)


def _distinct(held: Iterable[Held]) -> list[Held]:
    """A last stage's copy of the embedding is the same, and a layer whose parameter has another shape than the first
    one's is left out: a site has one."""
    return list(_first_of_each(held))


def _first_of_each(held: Iterable[Held]) -> Iterator[Held]:
    seen: set[tuple[str, int | None]] = set()
    axes: dict[str, tuple[Axis, ...]] = {}
    for each in held:
        key = each.site.name, each.spot.layer
        if key not in seen and axes.setdefault(each.site.name, each.site.axes) == each.site.axes:
            seen.add(key)
            yield each
