"""Devices that stand in work of their own (a kernel that never ends), against what frontiers tell.

A host launches ahead of its device. When that stands, the host goes on until the driver takes no more: it may not come
to the operation that the others wait for, and looks as if its program stood still elsewhere. Or it has posted its
messages, as the others have, and it looks as if the link between them stood. What the device has passed tells: where
the oldest mark that it has not was recorded before any operation that the rank is in, it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from megatronapp.detector.signals.frontier import Blame, Side

_OF_NOBODY = {Side.NETWORK, Side.CIRCULAR}
"""What leaves open who of those that are in it holds up the others."""


def stands(unpassed_mark_ns: int, opened_ns: Iterable[int]) -> bool:
    """opened_ns: when each operation was handed over that is not through, by the mark's clock; 0: not known."""
    return unpassed_mark_ns > 0 and all(unpassed_mark_ns < opened for opened in opened_ns)


def of_devices(blamed: Collection[Blame], standing: Collection[int]) -> list[Blame]:
    """Who is to blame where these ranks' devices stand: they, not their hosts; and they alone of those that are in what
    does not end."""
    found = [b for b in blamed if b.rank in standing and b.side in {Side.HOST, *_OF_NOBODY}]
    if not found:
        return list(blamed)
    left = [b for b in blamed if not any(_is_explained(b, by=each) for each in found)]
    return sorted([*(_standing(b, blamed) for b in found), *left], key=lambda b: b.rank)


def _is_explained(b: Blame, by: Blame) -> bool:
    """Whether it is the same, or in the same network or circle."""
    return b is by or (b.side in _OF_NOBODY and (b.side, b.circle) == (by.side, by.circle))


def _standing(b: Blame, blamed: Iterable[Blame]) -> Blame:
    others = tuple(each.rank for each in blamed if each.rank != b.rank and _is_explained(each, by=b))
    waiting = others if b.side in _OF_NOBODY else b.waiting
    return replace(b, side=Side.DEVICE, waiting=waiting, circle=(), stands=True)
