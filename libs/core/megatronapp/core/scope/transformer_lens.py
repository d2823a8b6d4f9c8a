"""Names of TransformerLens' hook points, and the sites that they are.

Only what is the same value: `ln_final.hook_normalized` is without the norm's weight there, so that it has no name here.
Axes are the same too, [batch, pos, head, d_head]; so are masked cells: -inf in scores, 0 in patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from megatronapp.core.errors import UsageError
from megatronapp.core.scope.captures import Place, Wanted

_COMMON = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "attn.hook_v": "attn.v",
    "attn.hook_attn_scores": "attn.scores",
    "attn.hook_pattern": "attn.probs",
    "attn.hook_z": "attn.context",
    "attn.hook_result": "attn.result",
    "hook_attn_out": "attn.out",
    "mlp.hook_post": "mlp.act",
    "hook_mlp_out": "mlp.out",
}
_PLAIN = {"attn.hook_q": "attn.q", "attn.hook_k": "attn.k"}
_ROTATED = {
    "attn.hook_q": "attn.q_pre",
    "attn.hook_k": "attn.k_pre",
    "attn.hook_rot_q": "attn.q",
    "attn.hook_rot_k": "attn.k",
}
_GATED = {"mlp.hook_pre": "mlp.gate", "mlp.hook_pre_linear": "mlp.up"}
_UNGATED = {"mlp.hook_pre": "mlp.fc1"}
_OF_MODEL = {"hook_embed": "embed", "logits": "logits"}
_OF_LAYER = re.compile(r"blocks\.([0-9]{1,4})\.([a-z_.]+)")
NO_SAES: Mapping[str, Sequence[int]] = {}


def place_of(hook: str) -> Place | None:
    """The site of a layer whose values a hook point has, whatever the model; None: it is none, or not the same in all
    models."""
    found = _OF_LAYER.fullmatch(hook)
    site = _COMMON.get(found[2]) if found else None
    return None if found is None or site is None else (site, int(found[1]))


def hook_names(
    sites: Iterable[str], layers: int, *, learned_positions: bool = False, saes: Mapping[str, Sequence[int]] = NO_SAES
) -> dict[str, Place]:
    """By name the site and layer, of a model that has these sites. With learned positions what is embedded is with
    them already, as TransformerLens' first residual is. `saes`: by site the layers that an SAE encodes."""
    have = set(sites)
    of_layer = dict(_COMMON)
    of_layer |= _ROTATED if "attn.q_pre" in have else _PLAIN
    of_layer |= _GATED if "mlp.gate" in have else _UNGATED
    of_model = {"logits": "logits"} if learned_positions else _OF_MODEL
    names: dict[str, Place] = {name: (site, None) for name, site in of_model.items() if site in have}
    for layer in range(layers):
        names |= {f"blocks.{layer}.{name}": (site, layer) for name, site in of_layer.items() if site in have}
    return names | {f"blocks.{layer}.{site}": (site, layer) for site, held in saes.items() for layer in held}


def wanted(
    asked: Sequence[str],
    sites: Iterable[str],
    layers: int,
    *,
    learned_positions: bool = False,
    saes: Mapping[str, Sequence[int]] = NO_SAES,
) -> dict[str, Place]:
    """The hook points that names mean, of which `*` and `?` stand for any characters; `hook_pattern` alone means that
    of all layers. Raises UsageError."""
    known = hook_names(sites, layers, learned_positions=learned_positions, saes=saes)
    chosen: dict[str, Place] = {}
    for pattern in asked:
        found = [name for name in known if fnmatchcase(name, pattern) or name.endswith(f".{pattern}")]
        if not found:
            near = get_close_matches(pattern, known, 3, 0.4)
            raise UsageError(f"no hook point {pattern!r}: take for example {', '.join(near or list(known)[:4])}")
        chosen |= {name: known[name] for name in found}
    return chosen


def grouped(places: Iterable[Place]) -> list[Wanted]:
    """Each site once, with all its layers."""
    layers: dict[str, list[int]] = {}
    for site, layer in places:
        layers.setdefault(site, []).extend([] if layer is None else [layer])
    return [Wanted(site, tuple(sorted(set(numbers)))) for site, numbers in layers.items()]
