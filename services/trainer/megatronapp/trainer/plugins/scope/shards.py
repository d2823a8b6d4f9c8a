"""Which part of the undivided tensor a rank's one is: for each axis the global numbers of its entries.

What is drawn for an element, and which elements a selection means, depends on these alone, so that every layout comes
to the same. How an axis is cut is `core.scope.sites`' to say, which the gateway puts the parts together by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.core.scope.sites import Axis, Coordinates, Model, Pass, Rule, Site, standard_sites
from megatronapp.trainer.plugins.scope.places import LOSS, OF_WEIGHTS, Dims, Place
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.saes import Sae

Index = dict[str, torch.Tensor]
"""By axis, int64, of a shape that broadcasts against the tensor as the model has it."""
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
OF_FORWARD = frozenset({"batch", "token", "query", "key"})
"""Axes that may have another size in each forward pass."""
WHOLE_HISTORY = frozenset({"attn.k", "attn.v"})
"""With a cache of keys and values these hold all rows from the first token on, not the new ones alone."""


@dataclass(frozen=True, eq=False)
class Shard:
    """This rank's part of the model."""

    model: Model
    at: Coordinates
    sites: Mapping[str, Site]
    ids: int = 0
    """Of the vocabulary without its padding; 0: not known."""
    saes: tuple[Sae, ...] = ()

    @classmethod
    def of(
        cls,
        chunks: Sequence[torch.nn.Module],
        config: TransformerConfig,
        *,
        vocabulary: int,
        micro_batch_size: int,
        sequence_length: int,
        ids: int = 0,
        saes: Sequence[Sae] = (),
    ) -> Shard:
        """`vocabulary` with its padding, `ids` without."""
        model = Model(
            layers=config.num_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            head_channels=int(config.kv_channels or 0),
            mlp_channels=int(config.ffn_hidden_size or 0),
            vocabulary=vocabulary,
            query_groups=config.num_query_groups or config.num_attention_heads,
            experts=config.num_moe_experts or 0,
            expert_channels=int(config.moe_ffn_hidden_size or 0),
            gated=bool(config.gated_linear_unit),
            batch=micro_batch_size,
            tokens=sequence_length,
        )
        at = _coordinates(chunks, config)
        sites = standard_sites(model, at, DTYPES.get(config.params_dtype, "f32"))
        return cls(model, at, {site.name: site for site in (*sites, *encoded_sites(sites, saes, at))}, ids, tuple(saes))

    @cached_property
    def generating(self) -> Shard:
        """The same while it generates: rows and tokens are as many as a request has, data-parallel replicas compute the
        same ones, nobody splits tokens, and each tensor rank has the logits of the whole vocabulary, without its
        padding."""
        model = replace(self.model, batch=0, tokens=0, vocabulary=self.ids or self.model.vocabulary)
        at = replace(self.at, data=(0, 1), context=(0, 1), sequence_parallel=False)
        dtype = next((site.dtype for site in self.sites.values()), "f32")
        standard = standard_sites(model, at, dtype)
        sites = [
            replace(
                site,
                passes=(Pass.GENERATE,),
                axes=self.sites[site.name].axes
                if site.name in OF_WEIGHTS
                else tuple(axis.whole if axis.name == "vocab" else axis for axis in site.axes),
            )
            for site in (*standard, *encoded_sites(standard, self.saes, at))
            if Pass.FORWARD in site.passes and site.name != LOSS
        ]
        return Shard(model, at, {site.name: site for site in sites}, self.ids, self.saes)

    @property
    def stream(self) -> tuple[Axis, ...]:
        """Axes of the residual stream."""
        return self.sites["resid_post" if self.at.layers else "embed"].axes

    @property
    def tensor(self) -> int:
        return self.at.tensor[0]

    @property
    def tensors(self) -> int:
        return self.at.tensor[1]

    @property
    def data(self) -> int:
        return self.at.data[0]

    def index(self, site: str, place: Place, value: torch.Tensor, position: Position) -> Index:
        """Of a site's tensor on this rank. `batch` counts the samples of the global batch."""
        index: Index = {}
        axes = {axis.name: axis for axis in self.sites[site].axes}
        for dim, names in enumerate(place.dims):
            size = value.shape[dim]
            counts = self.counts(names, size)
            for name, count in zip(names, counts, strict=True):
                numbers = self._numbers(site, axes[name], count, position).to(value.device)
                if len(names) == 2:  # heads, and the channels of each
                    numbers = numbers.repeat_interleave(counts[1]) if name == names[0] else numbers.repeat(counts[0])
                index[name] = numbers.view([-1 if d == dim else 1 for d in range(value.dim())])
        return index

    def counts(self, names: Sequence[str], size: int) -> tuple[int, ...]:
        """How many entries each of the axes in one dimension has, outermost first."""
        if len(names) == 1:
            return (size,)
        return size // self.model.head_channels, self.model.head_channels

    def axis_sizes(self, site: str, dims: Dims, shape: Sequence[int]) -> tuple[Axis, ...]:
        """The site's axes as they are over all shards, where this rank has so many entries in each dimension."""
        return _axis_sizes(self, site, dims, tuple(shape))

    def _numbers(self, site: str, axis: Axis, size: int, position: Position) -> torch.Tensor:
        whole = replace(axis, size=_whole(axis, size))
        numbers = torch.tensor(pieces(whole)[piece_index(whole)])
        if axis.name == "batch":
            return numbers + position.microbatch * whole.size
        if axis.name in {"token", "query"} and site not in WHOLE_HISTORY:
            return numbers + position.first_token
        return numbers


def encoded_sites(sites: Sequence[Site], saes: Sequence[Sae], at: Coordinates) -> list[Site]:
    """What SAEs make of these sites: split as they are, with features as channels."""
    named = {site.name: site for site in sites}
    return [
        replace(
            named[sae.site],
            name=sae.name,
            layers=(sae.layer,),
            dtype="f32",
            axes=tuple(
                replace(axis, size=sae.features) if axis.name == "chan" else axis for axis in named[sae.site].axes
            ),
        )
        for sae in saes
        if sae.layer in at.layers
    ]


@lru_cache(maxsize=512)
def _axis_sizes(shard: Shard, site: str, dims: Dims, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    local = {
        name: count
        for names, size in zip(dims, shape, strict=True)
        for name, count in zip(names, shard.counts(names, size), strict=True)
    }
    return tuple(_sized(axis, _whole(axis, local[axis.name])) for axis in shard.sites[site].axes)


def _sized(axis: Axis, size: int) -> Axis:
    return axis if axis.size == size else Axis(axis.name, size, axis.splits)


def _whole(axis: Axis, size: int) -> int:
    """An axis' size over all shards, of each of which holds `size`. Of groups that ranks share the model knows."""
    if axis.size and axis.name not in OF_FORWARD:
        return axis.size
    return size * math.prod([split.parts for split in axis.splits]) if axis.splits else size


def _coordinates(chunks: Sequence[torch.nn.Module], config: TransformerConfig) -> Coordinates:
    state = parallel_state
    layers = [int(layer.layer_number) - 1 for chunk in chunks for layer in chunk.decoder.layers]  # type: ignore[union-attr]
    return Coordinates(
        tensor=(state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()),
        data=(state.get_data_parallel_rank(), state.get_data_parallel_world_size()),
        context=(state.get_context_parallel_rank(), state.get_context_parallel_world_size()),
        expert=(state.get_expert_model_parallel_rank(), state.get_expert_model_parallel_world_size()),
        experts_gather=config.moe_token_dispatcher_type == "allgather",  # noqa: S105  (no password)
        sequence_parallel=bool(config.sequence_parallel),
        layers=tuple(sorted(layers)),
        first_stage=any(bool(chunk.pre_process) for chunk in chunks),
        last_stage=any(bool(chunk.post_process) for chunk in chunks),
    )


def splits_sequence(site: Site) -> bool:
    return any(split.rule is Rule.SEQUENCE for axis in site.axes for split in axis.splits)
