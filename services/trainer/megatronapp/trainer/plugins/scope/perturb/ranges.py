"""Numbers that a selection means: layers, heads, tokens, steps, as expressions write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from megatronapp.core.scope.expression import ExpressionError, parse
from megatronapp.core.scope.operations import Pick, Slice


@dataclass(frozen=True, slots=True)
class Ranges:
    """`10:20`, `0,3,7`, `::2`. Counted from 0, and never from the end: how long a sequence becomes is not known."""

    picks: tuple[Pick, ...] = ()
    """Empty: all."""

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Raises DataError."""
        if not text.strip():
            return cls()
        picks = parse(f"layers[{text}].site").selector.layers
        ends = [end for pick in picks for end in ((pick.start, pick.stop) if isinstance(pick, Slice) else (pick,))]
        if any(end is not None and end < 0 for end in ends):
            raise ExpressionError(f"{text!r} counts from the end", 0, "count from 0")
        return cls(picks)

    def __contains__(self, number: int) -> bool:
        return not self.picks or any(_holds(pick, number) for pick in self.picks)

    def numbers(self) -> tuple[int, ...]:
        """Those that are named one by one or by a range with an end, in their order; a range without has none."""
        found: list[int] = []
        for pick in self.picks:
            if isinstance(pick, int):
                found.append(pick)
            elif pick.stop is not None:
                found += range(pick.start or 0, pick.stop, pick.step or 1)
        return tuple(found)

    def mask(self, index: torch.Tensor) -> torch.Tensor | None:
        """Which of these numbers are meant, bool of the same shape; None: all."""
        if not self.picks:
            return None
        mask = torch.zeros_like(index, dtype=torch.bool)
        for pick in self.picks:
            mask |= _mask(pick, index)
        return mask


def _holds(pick: Pick, number: int) -> bool:
    if isinstance(pick, int):
        return pick == number
    start = pick.start or 0
    inside = number >= start and (pick.stop is None or number < pick.stop)
    return inside and (number - start) % (pick.step or 1) == 0


def _mask(pick: Pick, index: torch.Tensor) -> torch.Tensor:
    if isinstance(pick, int):
        return index == pick
    start = pick.start or 0
    mask = (index >= start) & ((index - start) % (pick.step or 1) == 0)
    return mask if pick.stop is None else mask & (index < pick.stop)
