"""Where one can look: names of sites, their axes, and how each axis is spread over ranks.

A site's values belong to one layer, or to the model. `Axis.splits` say which part of an axis a rank holds; whoever
has the splits of all ranks puts the whole together without asking anybody (`layout`, `stitch`). A split without a rule
is refused: a fragment is never shown as the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import AXES
from megatronapp.core.str_enum import StrEnum

MAX_SITES = 4096
MAX_AXES = 4
MAX_PARTS = 1 << 14
"""Of a site: shards that make one picture."""
MAX_SIZE = 1 << 20
"""Of an axis: positions along it are held as arrays."""
MAX_LAYERS = 4096
MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.A)
_DTYPE = re.compile(r"\w{0,16}", re.A)


class Rule(StrEnum):
    """How an axis is cut. All but CONTEXT and TENSOR_PAIRS give part i of n the i-th of n equal stretches."""

    DATA = "data"
    """Rows of the batch over data-parallel replicas."""
    TENSOR = "tensor"
    """Heads, channels, vocabulary over tensor-parallel ranks. Fewer groups of keys and values than ranks: neighbours
    hold the same one."""
    TENSOR_PAIRS = "tensor_pairs"
    """Each half over tensor-parallel ranks: a gated MLP's fc1, of which a rank has its part of gate and its part of
    up."""
    SEQUENCE = "sequence"
    """Tokens over tensor-parallel ranks, between the parallel regions."""
    CONTEXT = "context"
    """Tokens in 2n stretches, of which part i has the i-th and the i-th from the end."""
    EXPERT = "expert"


class Pass(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    GENERATE = "generate"
    """An entry for generation alone, where axes are split otherwise than in training."""


@dataclass(frozen=True, slots=True)
class Split:
    rule: Rule
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: int
    """Of the whole model; 0: another one in each forward."""
    splits: tuple[Split, ...] = ()
    """Outermost first."""

    @property
    def whole(self) -> Axis:
        return Axis(self.name, self.size)


@dataclass(frozen=True, slots=True)
class Site:
    """What a rank says of one of its sites (proto: ScopeSite)."""

    name: str
    axes: tuple[Axis, ...]
    layers: tuple[int, ...] = ()
    dtype: str = "f32"
    passes: tuple[Pass, ...] = (Pass.FORWARD,)

    def checked(self) -> Site:
        """Itself. Raises DataError for what can't be true."""
        if len(self.name) > MAX_NAME or not _NAME.fullmatch(self.name):
            raise DataError(f"{self.name[:40]!r} is no name of a site; it is made of letters, digits, _ and dots")
        names = [axis.name for axis in self.axes]
        if len(names) > MAX_AXES or len(set(names)) != len(names) or not set(names) <= set(AXES):
            raise DataError(f"site {self.name} has axes {names}; at most {MAX_AXES} of {', '.join(AXES)}")
        if len(self.layers) > MAX_LAYERS or any(not 0 <= layer < MAX_LAYERS for layer in self.layers):
            raise DataError(f"site {self.name} has layers beyond {MAX_LAYERS}")
        if not _DTYPE.fullmatch(self.dtype):
            raise DataError(f"site {self.name} has a dtype of another form")
        parts = 1
        for axis in self.axes:
            parts *= _checked_parts(self.name, axis)
        if parts > MAX_PARTS:
            raise DataError(f"site {self.name} is in {parts} parts; at most {MAX_PARTS}")
        return self

    @property
    def generates(self) -> bool:
        return Pass.GENERATE in self.passes


def _checked_parts(site: str, axis: Axis) -> int:
    parts = 1
    for split in axis.splits:
        parts *= split.parts
        if not 0 <= split.part < split.parts:
            raise DataError(f"site {site}: part {split.part} of {split.parts} of {axis.name}")
    if not 0 <= axis.size <= MAX_SIZE or len(axis.splits) > 2:
        raise DataError(f"site {site}: {axis.name} of {axis.size} in {parts} parts")
    return parts


ALIASES = {
    "mlp.down": "mlp.out",
    "mlp.fc2": "mlp.out",
    "attn.context_layer": "attn.context",
    "attn.pattern": "attn.probs",
}
"""Other names that people know."""

SAE = "sae."
"""What names of sites begin with that a sparse autoencoder makes of another one; then comes its own name."""
WEIGHT, STATE = "weight.", "opt."
"""What names of sites begin with that are a parameter, or what the optimizer keeps of it; then come its state's name
and its own one in the whole model, without its layer."""
TOKENS = "tokens"
"""Ids of what the model is given; with their texts, while somebody looks."""
PROBABILITIES = ("attn.probs", "probabilities", "router.probs")


def default_quantizer(site: str) -> str:
    if site == TOKENS:
        return "f32"
    return "sqrt" if site.removeprefix("grad.") == site and site in PROBABILITIES else "asinh"


def matching(pattern: str, sites: Iterable[str]) -> list[str]:
    """The names that a selector's site means, in their order; `*` stands for any characters."""
    pattern = ALIASES.get(pattern, pattern)
    return [name for name in sites if fnmatchcase(name, pattern)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a model; 0: it has none."""

    layers: int
    hidden: int
    heads: int
    head_channels: int
    mlp_channels: int
    vocabulary: int
    """Rows of the embedding, with its padding."""
    query_groups: int = 0
    experts: int = 0
    expert_channels: int = 0
    """Inner ones of an expert."""
    gated: bool = False
    batch: int = 0
    """Of a microbatch; 0: another in each forward."""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where a rank stands, and in how many."""

    tensor: tuple[int, int] = (0, 1)
    data: tuple[int, int] = (0, 1)
    context: tuple[int, int] = (0, 1)
    expert: tuple[int, int] = (0, 1)
    experts_gather: bool = False
    """A rank has what its experts make of all expert-parallel ranks' tokens; else what all experts make of its."""
    sequence_parallel: bool = False
    layers: tuple[int, ...] = ()
    """Global numbers of its layers, over all its chunks."""
    first_stage: bool = True
    last_stage: bool = True


_LAYER_SITES: Mapping[str, tuple[str, ...]] = {
    "resid_pre": ("batch", "token/sequence", "chan:hidden"),
    "attn.q_pre": ("batch", "token", "head/tensor", "chan:head"),
    "attn.k_pre": ("batch", "token", "group/tensor", "chan:head"),
    "attn.q": ("batch", "token", "head/tensor", "chan:head"),
    "attn.k": ("batch", "token", "group/tensor", "chan:head"),
    "attn.v": ("batch", "token", "group/tensor", "chan:head"),
    "attn.scores": ("batch", "head/tensor", "query", "key"),
    "attn.probs": ("batch", "head/tensor", "query", "key"),
    "attn.context": ("batch", "token", "head/tensor", "chan:head"),
    "attn.result": ("batch", "token", "head/tensor", "chan:hidden"),
    "attn.out": ("batch", "token/sequence", "chan:hidden"),
    "resid_mid": ("batch", "token/sequence", "chan:hidden"),
    "mlp.fc1": ("batch", "token", "chan:fc1/tensor"),
    "mlp.act": ("batch", "token", "chan:mlp/tensor"),
    "mlp.out": ("batch", "token/sequence", "chan:hidden"),
    "resid_post": ("batch", "token/sequence", "chan:hidden"),
}
_GATED_SITES = {
    "mlp.gate": ("batch", "token", "chan:mlp/tensor"),
    "mlp.up": ("batch", "token", "chan:mlp/tensor"),
}
_MOE_SITES = {
    "router.logits": ("batch", "token/sequence", "expert"),
    "router.probs": ("batch", "token/sequence", "expert"),
    "router.load": ("batch", "token/sequence", "expert"),
    "experts.act": ("batch/experts", "token", "expert/experts", "chan:expert/tensor"),
    "experts.out": ("batch/experts", "token/experts", "expert/experts", "chan:hidden"),
}
_FIRST_SITES = {TOKENS: ("batch", "token"), "embed": ("batch", "token/sequence", "chan:hidden")}
_LAST_SITES = {
    "final_norm": ("batch", "token/sequence", "chan:hidden"),
    "logits": ("batch", "token", "vocab/tensor"),
    "loss": ("batch", "token"),
    "weight.final_norm": ("chan:hidden",),
    "weight.unembed": ("vocab/tensor", "chan:hidden"),
}


def standard_sites(model: Model, at: Coordinates, dtype: str = "f32") -> list[Site]:
    """The activations that a GPT of megatron-core has on a rank, and their gradients. Of layers with experts the MLP's
    own sites are those of the shared expert, where there is one."""
    layered = dict(_LAYER_SITES) | (_GATED_SITES if model.gated else {}) | (_MOE_SITES if model.experts else {})
    named: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = []
    if at.layers:
        named += [(name, axes, at.layers) for name, axes in layered.items()]
    if at.first_stage:
        named += [(name, axes, ()) for name, axes in _FIRST_SITES.items()]
    if at.last_stage:
        named += [(name, axes, ()) for name, axes in _LAST_SITES.items()]
    sites = [Site(name, tuple(_axis(axis, model, at) for axis in axes), layers, dtype) for name, axes, layers in named]
    without_gradient = (
        *(TOKENS, "loss", "router.load", "experts.act", "experts.out", "attn.result"),
        *("weight.final_norm", "weight.unembed"),
    )
    gradients = [
        replace(site, name=f"grad.{site.name}", passes=(Pass.BACKWARD,))
        for site in sites
        if site.name not in without_gradient
    ]
    return sites + gradients


def _axis(text: str, model: Model, at: Coordinates) -> Axis:
    text, _, rule = text.partition("/")
    name, _, of = text.partition(":")
    sizes = {
        "batch": model.batch * at.data[1],
        "token": model.tokens,
        "query": model.tokens,
        "key": model.tokens,
        "head": model.heads,
        "group": model.query_groups or model.heads,
        "expert": model.experts,
        "vocab": model.vocabulary,
        "chan:hidden": model.hidden,
        "chan:head": model.head_channels,
        "chan:mlp": model.mlp_channels,
        "chan:expert": model.expert_channels,
        "chan:fc1": model.mlp_channels * (2 if model.gated else 1),
    }
    return Axis(name, sizes[text], _splits(name, of, rule, model, at))


def _splits(name: str, of: str, rule: str, model: Model, at: Coordinates) -> tuple[Split, ...]:
    splits = []
    gathered = rule == "experts" and at.experts_gather
    if name == "batch":  # expert-parallel ranks are neighbours among the replicas
        ranks = at.expert[1] if gathered else 1
        splits.append(Split(Rule.DATA, at.data[0] // ranks, max(at.data[1] // ranks, 1)))
    if name in ("token", "query"):
        splits.append(Split(Rule.CONTEXT, *at.context))
    if name == "token" and rule in ("sequence", "experts") and at.sequence_parallel and not gathered:
        splits.append(Split(Rule.SEQUENCE, *at.tensor))
    if rule == "tensor":
        splits.append(Split(Rule.TENSOR_PAIRS if of == "fc1" and model.gated else Rule.TENSOR, *at.tensor))
    if name == "expert" and gathered:
        splits.append(Split(Rule.EXPERT, *at.expert))
    return tuple(split for split in splits if split.parts > 1)


def whole(sites: Iterable[Site]) -> list[Site]:
    """The model's sites, of those of all its ranks: axes without splits, layers of all stages."""
    found: dict[tuple[str, bool], Site] = {}
    for site in sites:
        key = site.name, site.generates
        before = found.get(key)
        layers = set(site.layers).union(before.layers if before else ())
        axes = tuple(axis.whole for axis in site.axes)
        found[key] = replace(site, axes=axes, layers=tuple(sorted(layers)))
    return list(found.values())


def resolved(axes: Sequence[Axis], extents: Sequence[int]) -> tuple[Axis, ...]:
    """The axes as they are in one forward, whose sizes over all shards are `extents`. Raises DataError for others."""
    if len(extents) != len(axes) or any(
        not 0 < extent <= MAX_SIZE or (axis.size and extent != axis.size)
        for axis, extent in zip(axes, extents, strict=False)
    ):
        raise DataError(f"extents {list(extents)} of axes {[(axis.name, axis.size) for axis in axes]}")
    return tuple(replace(axis, size=extent) for axis, extent in zip(axes, extents, strict=True))
