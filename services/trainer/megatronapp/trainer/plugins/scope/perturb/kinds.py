"""What a disturbance makes of values: functions of the values and of random words, one for each element.

Words are drawn by an element's place (`philox`), so that the result does not depend on how the tensor is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer.plugins.scope.perturb.philox import Words, normal, uniform

Draw = Callable[[], Words]
"""Four words for each element, of a shape that broadcasts against the values."""
RANDOM, FIXED = ("noise1", "noise2", "bit_flip"), ("constant", "scale", "stuck_at", "zero")
ELEMENTWISE = (*RANDOM, *FIXED)
WORDS_OF = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
EXPONENT_BITS = {torch.float32: 8, torch.bfloat16: 8, torch.float16: 5}


def apply(kind: str, values: torch.Tensor, coefficient: float, bits: str, draw: Draw) -> torch.Tensor:
    """What becomes of all values, of their shape and type.

    noise1: x + N(0, coefficient²). noise2: x · U(1 − coefficient, 1 + coefficient). constant: x + coefficient.
    scale: x · coefficient. zero: 0. bit_flip: one of the bits, of a share `coefficient` of the elements. stuck_at: the
    coefficient, or where `bits` says which, these bits at 0 or 1.
    """
    if kind == "noise1":
        first, second, *_ = draw()
        return values + (coefficient * normal(first, second)).to(values.dtype)
    if kind == "noise2":
        return values * (1.0 + coefficient * (2.0 * uniform(draw()[0]) - 1.0)).to(values.dtype)
    if kind == "constant":
        return values + coefficient
    if kind == "scale":
        return values * coefficient
    if kind == "zero":
        return torch.zeros_like(values)
    if kind == "bit_flip":
        return _Replace.apply(values, _flipped(values.detach(), coefficient, bits, draw()))
    if bits:
        return _Replace.apply(values, _stuck(values.detach(), coefficient, bits))
    return torch.full_like(values, coefficient)


def check(kind: str, coefficient: float, bits: str) -> None:
    """Raises DataError for what no type of values has."""
    if kind == "bit_flip" and not 0 < coefficient <= 1:
        raise DataError(f"bit_flip of a share {coefficient:g} of the elements: it must be above 0 and at most 1")
    if kind == "noise2" and coefficient < 0:
        raise DataError(f"noise2 of the extent {coefficient:g}: it must not be negative")
    if bits:
        BitField.of(bits, torch.float32)
        if kind == "stuck_at" and coefficient not in (0, 1):
            raise DataError(f"bits that are stuck at {coefficient:g}: they can be stuck at 0 or 1")


@dataclass(frozen=True, slots=True)
class BitField:
    """Bits of a floating-point number, counted from the least significant one."""

    first: int
    count: int

    @classmethod
    def of(cls, text: str, dtype: torch.dtype) -> BitField:
        """ "sign", "exponent", "mantissa", a number, or empty: all. Raises DataError."""
        width = 8 * dtype.itemsize
        exponent = EXPONENT_BITS[dtype]
        fields = {
            "": cls(0, width),
            "sign": cls(width - 1, 1),
            "exponent": cls(width - 1 - exponent, exponent),
            "mantissa": cls(0, width - 1 - exponent),
        }
        if text in fields:
            return fields[text]
        if text.isascii() and text.isdigit() and int(text) < width:
            return cls(int(text), 1)
        raise DataError(f"bits {text!r:.40}: write sign, exponent, mantissa, or a number from 0 to {width - 1}")

    @property
    def mask(self) -> int:
        return ((1 << self.count) - 1) << self.first


class _Replace(torch.autograd.Function):
    """A fault of the hardware: the value is another one, and the gradient goes on as if it were not."""

    @staticmethod
    def forward(_: Any, __: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return new.clone()  # no view: the pipeline frees its outputs

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _flipped(values: torch.Tensor, share: float, bits: str, words: Words) -> torch.Tensor:
    field = BitField.of(bits, values.dtype)
    bit = field.first + words[1] % field.count
    hit = uniform(words[0]) < share
    flips = _signed(torch.where(hit, torch.ones_like(bit) << bit, 0), values.dtype)
    return (values.contiguous().view(WORDS_OF[values.dtype]) ^ flips).view(values.dtype)


def _stuck(values: torch.Tensor, at: float, bits: str) -> torch.Tensor:
    mask = _signed(torch.tensor(BitField.of(bits, values.dtype).mask, device=values.device), values.dtype)
    words = values.contiguous().view(WORDS_OF[values.dtype])
    return (words | mask if at else words & ~mask).view(values.dtype)


def _signed(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """int64 words of a number's width as signed ones of that width."""
    width = 8 * dtype.itemsize
    return torch.where(words >= 1 << (width - 1), words - (1 << width), words).to(WORDS_OF[dtype])
