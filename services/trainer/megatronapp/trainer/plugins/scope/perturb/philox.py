"""Random numbers that are a function of their place, not of the order in which they were drawn.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, in 64-bit
integers of torch. A value's counter is its place in the undivided tensor and in the run, so that any layout of ranks, a
stage that computes a layer twice, and a run that goes over a step again draw the same.
"""

from __future__ import annotations

import math
from hashlib import blake2s
from typing import NamedTuple

import torch

MASK = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Key(NamedTuple):
    """Two words of 32 bits: one stream of numbers."""

    low: int
    high: int

    @classmethod
    def of(cls, seed: int, *names: object) -> Key:
        """The stream of a seed for what the names say: the same in every process, unlike Python's hash."""
        text = "\0".join(map(str, (seed, *names))).encode()
        digest = blake2s(text, digest_size=8).digest()
        return cls(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))


def philox(counter: Words, key: Key) -> Words:
    """Four words of 32 random bits for each counter; all int64 with values below 2^32, of shapes that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low0, high0 = _multiplied(c0, _MULTIPLIERS[0])
        low1, high1 = _multiplied(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return c0, c1, c2, c3


def words_at(place: torch.Tensor, sample: torch.Tensor, step: int, key: Key) -> Words:
    """Of the elements at `place` [...] of a sample, int64 each; `sample` broadcasts against it."""
    return philox((place & MASK, place >> 32 & MASK, sample & MASK, torch.full_like(sample, step & MASK)), key)


def uniform(word: torch.Tensor) -> torch.Tensor:
    """In (0, 1), float64."""
    return (word.double() + 0.5) * 2.0**-32


def normal(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of mean 0 and deviation 1, float64: Box and Muller's. In float64, so that the last bit of a device's logarithm is
    gone when the value is rounded to the tensor's own type."""
    return torch.sqrt(-2.0 * torch.log(uniform(first))) * torch.cos(2.0 * math.pi * uniform(second))


def _multiplied(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper word of the product; the factor is split, as 64 signed bits do not hold the product."""
    low, high = word * (factor & 0xFFFF), word * (factor >> 16)
    middle = high + (low >> 16)
    return (low & 0xFFFF) | (middle & 0xFFFF) << 16, middle >> 16
