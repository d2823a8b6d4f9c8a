"""MegaScope's own words as expressions: its sites, its `pixels`, and the Python that its users typed.

MegaScope cuts the channels into `pixels` chunks and evaluates the user's text on `data`, with the chunk as the last
dimension. Here the texts that people use are looked up in a table; any other is refused with what to write instead.

    MLP1_mat_mul | pixels(64) | data.abs().max(dim=-1)      →  layers[*].mlp.fc1 | pool(chan,64,absmax)
    layers[3].attn.q | head(0) | data.mean(dim=-1)          →  layers[3].attn.q | head(0) | pool(chan,96,mean)
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from megatronapp.core.scope.arguments import MAX_BINS, ExpressionError
from megatronapp.core.scope.expression import MAX_CHARACTERS, Expression, parse

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
_PIXELS = re.compile(r"pixels\(\s*(\d{1,9})\s*\)", re.A)
_CODE = re.compile(r"(?:data|torch)\s*\.", re.A)


def read(text: str) -> Expression:
    """An expression, also one in MegaScope's words: a kind in place of the selector, `pixels(n)` and the Python that is
    done to `data`. Raises ExpressionError, whatever the text."""
    selector, *operations = (part.strip() for part in text[: MAX_CHARACTERS + 1].split("|"))
    own = [each for each in operations if _PIXELS.fullmatch(each) or _CODE.match(each)]
    if len(text) > MAX_CHARACTERS or (selector not in SITES and not own):
        return parse(text)
    given = [int(match[1]) for each in own if (match := _PIXELS.fullmatch(each))]
    methods = [each for each in own if _CODE.match(each)]
    if len(given) > 1 or len(methods) > 1:
        raise ExpressionError("pixels and what is done to data are said twice", 0, "say each once")
    pixels, method = given[0] if given else None, methods[0] if methods else DEFAULT_METHOD
    if selector in SITES:
        found = translate(selector, pixels, method)
    else:
        default = DEFAULT_PIXELS["QKV" if ".attn." in selector else "MLP"]
        found = (f"{selector} | {_pooled(default if pixels is None else pixels, method)}",)
    if len(found) > 1:
        raise ExpressionError(f"{selector} is {len(found)} pictures", 0, f"write one: {', or '.join(found)}")
    chosen, *rest = found[0].split(" | ")
    return parse(" | ".join((chosen, *(each for each in operations if each not in own), *rest)))


def translate(kind: str, pixels: int | None = None, method: str = DEFAULT_METHOD) -> tuple[str, ...]:
    """The expressions of one of MegaScope's kinds (`SITES`), with its compressor's settings. Raises ExpressionError."""
    if kind not in SITES:
        raise ExpressionError(f"MegaScope has no {kind[:40]}", 0, f"one of {', '.join(SITES)}")
    if kind not in _COMPRESSED:
        return SITES[kind]
    bins = DEFAULT_PIXELS[_COMPRESSED[kind]] if pixels is None else pixels
    return tuple(f"{site} | {_pooled(bins, method)}" for site in SITES[kind])


def _pooled(bins: int, method: str) -> str:
    if not 1 <= bins <= MAX_BINS:
        raise ExpressionError(f"{bins} pixels", 0, f"from 1 to {MAX_BINS}")
    before, how = _method(method)
    return f"{before}pool(chan,{bins},{how})"


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
