"""MegaScope's own words as expressions: its sites, its `pixels`, and the Python that its users typed.

MegaScope cuts the channels into `pixels` chunks and evaluates the user's text on `data`, with the chunk as the last
dimension. Here the texts that people use are looked up in a table; any other is refused with what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from megatronapp.core.scope.arguments import MAX_BINS, ExpressionError

DEFAULT_PIXELS = {"QKV": 96, "MLP": 64}
DEFAULT_METHOD = "data.mean(dim=-1)"
SITES: Mapping[str, tuple[str, ...]] = {
    "QKV_mat_mul": ("layers[*].attn.q", "layers[*].attn.k", "layers[*].attn.v"),
    "RawAttentionScore_mat_mul": ("layers[*].attn.probs",),
    "ContextLayer_mat_mul": ("layers[*].attn.context",),
    "MLP1_mat_mul": ("layers[*].mlp.fc1",),
    "MLP2_mat_mul": ("layers[*].mlp.out",),
    "MLP2_Plot": ("layers[*].mlp.out | pca(2)",),
    "Result": ("logits | topk(20)",),
}
"""Its flags → what they show. Its "raw" score is of after the softmax."""
_COMPRESSED = {"QKV_mat_mul": "QKV", "ContextLayer_mat_mul": "QKV", "MLP1_mat_mul": "MLP", "MLP2_mat_mul": "MLP"}

_METHODS = {
    "mean": ("", "mean"),
    "sum": ("", "sum"),
    "std": ("", "std"),
    "norm": ("", "l2"),
    "max": ("", "max"),
    "amax": ("", "max"),
    "min": ("", "min"),
    "amin": ("", "min"),
    "abs.mean": ("abs | ", "mean"),
    "abs.sum": ("abs | ", "sum"),
    "abs.max": ("", "absmax"),
    "abs.amax": ("", "absmax"),
}
_CALL = re.compile(r"(?:data|torch)\.(?:(abs)\(\)\.)?(\w+)\((?:data,)?(?:dim=)?-1\)(?:\.values|\[0\])?", re.A)
_OF_ABS = re.compile(r"torch\.(\w+)\((?:data\.abs\(\)|torch\.abs\(data\)),(?:dim=)?-1\)(?:\.values|\[0\])?", re.A)


def translate(kind: str, pixels: int | None = None, method: str = DEFAULT_METHOD) -> tuple[str, ...]:
    """The expressions of one of MegaScope's kinds (`SITES`), with its compressor's settings. Raises ExpressionError."""
    if kind not in SITES:
        raise ExpressionError(f"MegaScope has no {kind[:40]}", 0, f"one of {', '.join(SITES)}")
    if kind not in _COMPRESSED:
        return SITES[kind]
    bins = DEFAULT_PIXELS[_COMPRESSED[kind]] if pixels is None else pixels
    if not 1 <= bins <= MAX_BINS:
        raise ExpressionError(f"{bins} pixels", 0, f"from 1 to {MAX_BINS}")
    before, how = _method(method)
    return tuple(f"{site} | {before}pool(chan,{bins},{how})" for site in SITES[kind])


def _method(text: str) -> tuple[str, str]:
    short = re.sub(r"\s+", "", text[:200])
    if found := _CALL.fullmatch(short):
        name = f"{found[1]}.{found[2]}" if found[1] else found[2]
    elif found := _OF_ABS.fullmatch(short):
        name = f"abs.{found[1]}"
    else:
        name = ""
    if name not in _METHODS:
        raise ExpressionError(
            f"{text[:60]!r} is not translated", 0, "write an expression, such as pool(chan,64,absmax) or std"
        )
    return _METHODS[name]
