"""Calculation and system: values of a site are disturbed on their way through the model."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

from megatronapp.core.scope.intervention import FROM_VALUES, MEAN, PATCH
from megatronapp.trainer.plugins.scope.perturb import kinds
from megatronapp.trainer.plugins.scope.perturb.kept import Kept
from megatronapp.trainer.plugins.scope.perturb.philox import Key, Words, words_at
from megatronapp.trainer.plugins.scope.perturb.plan import SWAP_HEADS, Perturbation
from megatronapp.trainer.plugins.scope.places import LOSS, Place, Spot
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.shards import Index, Shard

_HEAD_BITS, _CHANNEL_BITS = 12, 24
"""A place in a sample is one number: token or query, head, channel or key, each in bits of its own, so that it does not
depend on how long the sequence is."""
_ROWS, _HEADS, _COLUMNS = ("token", "query"), ("head", "group"), ("chan", "key", "expert", "vocab")


class SiteChange:
    """A `taps.Change`: one perturbation at the spots that it chooses."""

    def __init__(self, perturbation: Perturbation, shard: Shard, kept: Kept) -> None:
        """`kept`: what earlier generations have left of themselves."""
        self._wish = perturbation
        self._shard = shard
        self._kept = kept

    def chooses(self, spot: Spot) -> bool:
        """Whether it does something there."""
        wish = self._wish
        if spot.layer is not None and spot.layer not in wish.layers:
            return False
        return self._fits(spot.site, spot.place)

    def known(self, places: Mapping[str, Place]) -> list[str]:
        """At which of these sites it could be done."""
        return [site for site, place in places.items() if self._fits(site, place)]

    def _fits(self, site: str, place: Place) -> bool:
        wish = self._wish
        if wish.place == "storage" or site == LOSS or place.computed or not fnmatchcase(site, wish.site):
            return False
        axes = {axis for dim in place.dims for axis in dim}
        if wish.kind == SWAP_HEADS and ("head" not in axes and not self._whole_groups(axes)):
            return False
        return not wish.heads.picks or bool(axes & set(_HEADS))

    def __call__(self, value: torch.Tensor, index: Index, spot: Spot, position: Position) -> torch.Tensor:
        wish = self._wish
        if position.step not in wish.steps or wish.replica not in (None, self._shard.data):
            return value
        if wish.request not in ("", position.request):
            return value
        if wish.kind == SWAP_HEADS:
            changed = self._swapped(value, spot)
        elif wish.kind in FROM_VALUES:
            changed = self._from_values(value, index, spot, position)
        else:
            changed = kinds.apply(
                wish.kind, value, wish.coefficient, wish.bits, lambda: self._words(index, spot, position)
            )
        mask = self._mask(index)
        return changed if mask is None else torch.where(mask, changed, value)

    def _whole_groups(self, axes: set[str]) -> bool:
        return "group" in axes and self._shard.model.query_groups >= self._shard.tensors

    def _mask(self, index: Index) -> torch.Tensor | None:
        """What is chosen; None: all."""
        wish = self._wish
        chosen = [(wish.tokens, _ROWS), (wish.channels, _COLUMNS), (wish.rows, ("batch",))]
        if wish.kind != SWAP_HEADS:
            chosen.append((wish.heads, _HEADS))
        mask: torch.Tensor | None = None
        for ranges, axes in chosen:
            at = next((index[axis] for axis in axes if axis in index), None)
            part = None if at is None else ranges.mask(at)
            if part is not None:
                mask = part if mask is None else mask & part
        return mask

    def _words(self, index: Index, spot: Spot, position: Position) -> Words:
        wish = self._wish
        rows, heads, columns = (
            next((index[axis] for axis in axes if axis in index), None) for axes in (_ROWS, _HEADS, _COLUMNS)
        )
        sample = index["batch"]
        place = torch.zeros_like(sample)
        for part, shift in ((rows, _HEAD_BITS + _CHANNEL_BITS), (heads, _CHANNEL_BITS), (columns, 0)):
            if part is not None:
                place = place + (part << shift)
        key = Key.of(wish.seed, spot.site, spot.layer, wish.number)
        if not wish.redraw:
            return words_at(place, torch.zeros_like(sample), 0, key)
        return words_at(place, sample, position.step, key)

    def _from_values(self, value: torch.Tensor, index: Index, spot: Spot, position: Position) -> torch.Tensor:
        wish = self._wish
        if wish.kind == PATCH:
            moved = dict(zip(wish.tokens.numbers(), wish.source_tokens.numbers(), strict=False))
            return self._kept.patched(value, spot, wish.source, position.end, moved)
        if wish.vector:
            along = index[next(axis for axis in _COLUMNS if axis in index)]
            vector = torch.tensor(wish.vector, dtype=value.dtype, device=value.device)[along]
        else:
            vector = self._kept.mean(spot, wish.source)
            if wish.baseline:
                vector = vector - self._kept.mean(spot, wish.baseline)
        vector = vector.to(value.dtype)
        return torch.zeros_like(value) + vector if wish.kind == MEAN else value + wish.coefficient * vector

    def _swapped(self, value: torch.Tensor, spot: Spot) -> torch.Tensor:
        """Heads in each other's place, also those of other tensor ranks, of which all come here together."""
        dims = spot.place.dims
        dim = next(at for at, axes in enumerate(dims) if set(axes) & set(_HEADS))
        tensors = self._shard.tensors
        count = (self._shard.model.query_groups if "group" in dims[dim] else self._shard.model.heads) // tensors
        heads = value.unflatten(dim, (count, -1)).movedim(dim, 0)
        first = self._shard.tensor * count
        if tensors > 1:
            heads = gather_from_sequence_parallel_region(heads.contiguous(), tensor_parallel_output_grad=True)
        order = torch.arange(first, first + count, device=value.device)
        for one, other in zip(self._wish.heads.numbers(), self._wish.with_heads.numbers(), strict=True):
            order = torch.where(order == one, -1, torch.where(order == other, one, order))
            order = torch.where(order == -1, other, order)
        if int(order.max()) >= count * tensors:
            return value  # heads that this site does not have
        return heads.index_select(0, order).movedim(0, dim).flatten(dim, dim + 1)
