"""What a reduction leaves on its device, and what becomes of it on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy.typing as npt
import torch

from megatronapp.core.scope.results import Result
from megatronapp.trainer.plugins.scope import patterns

Arrays = Sequence[Any]
"""NumPy arrays of `Reduced.tensors`, in their order."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A result that is still on its device."""

    tensors: tuple[torch.Tensor, ...]
    finish: Callable[[Arrays], Result]
    counted: patterns.Counted | None = None
    """In place of tensors: how often each pattern came, of which `completed` makes one."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors) if self.counted is None else self.counted.nbytes

    def on_host(self) -> Result:
        """Waits for the device."""
        done = completed([self])
        [arrays] = done.of([tensor.cpu().numpy() for tensor in done.tensors])
        return self.finish(arrays)


@dataclass(frozen=True, slots=True)
class Completed:
    """Results in as few tensors as there can be, still on the device."""

    tensors: list[torch.Tensor]
    places: list[list[tuple[int, int | None]]]
    """Of each result's tensors: which one it is, or in which row of one."""

    def of(self, arrays: Sequence[npt.NDArray[Any]]) -> list[list[npt.NDArray[Any]]]:
        """What each `finish` takes; `arrays` are those of the tensors."""
        return [
            [arrays[number] if row is None else arrays[number][row, ...] for number, row in places]
            for places in self.places
        ]


def completed(several: Sequence[Reduced]) -> Completed:
    """Statistics are made of all that was counted, at once."""
    tensors: list[torch.Tensor] = []
    tallies: dict[patterns.Wanted, dict[patterns.Tally, int]] = {}
    for each in several:
        if each.counted is not None:
            tallies.setdefault(each.counted.tally.wanted, {})[each.counted.tally] = 0
    numbers = {}
    for wanted, firsts in tallies.items():
        counts = [tally.counts() for tally in firsts]
        for tally, first in zip(firsts, accumulate(map(len, counts), initial=0), strict=False):
            firsts[tally] = first
        numbers[wanted] = len(tensors)
        tensors.append(patterns.made(wanted, counts[0] if len(counts) == 1 else torch.cat(counts)))
    places: list[list[tuple[int, int | None]]] = []
    for each in several:
        if (counted := each.counted) is not None:
            wanted = counted.tally.wanted
            places.append([(numbers[wanted], tallies[wanted][counted.tally] + counted.row)])
        else:
            places.append([(len(tensors) + at, None) for at in range(len(each.tensors))])
            tensors += each.tensors
    return Completed(tensors, places)
