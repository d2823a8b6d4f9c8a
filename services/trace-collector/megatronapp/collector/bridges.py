"""Clocks of hosts that share no collective, aligned by the messages between them. Pure and streaming.

A message is received no earlier than it was sent, whatever the clocks say. What the messages of a step show one way
bounds how far the receiver's clock can be behind, the other way how far it can be ahead (Huygens, NSDI 2018, uses the
same bounds); the middle of the interval is wrong by half its width at most. That middle is an anchor like the end of a
collective: alignment.Alignment smooths it over steps, leaves some out, and decides by these whether the fit is used.

A clock domain is a set of hosts that collectives align among themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from megatronapp.collector.align import Alignment, Anchors

Ints = npt.NDArray[np.int64]

KEPT_WIDTHS = 64
SEQUENCE_STRIDE = 8191
"""Tells the pairs of clock domains apart where it is decided who is left out of the fit."""


class ClockDomains:
    """Which hosts are aligned with which; grows together as collectives are seen."""

    def __init__(self) -> None:
        self._root: list[int] = []
        self.several = False

    def grow(self, hosts: int) -> None:
        """Make room for hosts; each is a domain at first."""
        self._root += range(len(self._root), hosts)
        self.several = len(set(self._root)) > 1

    def of(self, hosts: Ints) -> Ints:
        """The domain of each host: the number of its first one."""
        return np.array(self._root, np.int64)[hosts]

    def root(self, host: int) -> int:
        return self._root[host]

    def join(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Hosts that are members of one collective; returns whether domains have become one."""
        joined = False
        for one, other in pairs:
            low, high = sorted((self._root[one], self._root[other]))
            if low != high:
                self._root, joined = [low if root == high else root for root in self._root], True
        self.several = len(set(self._root)) > 1
        return joined


class Bridges:
    """Corrections of whole clock domains. What is learnt holds for one set of domains and one alignment within them."""

    def __init__(self) -> None:
        self.alignment = Alignment()
        self._half_widths: dict[int, deque[float]] = {}

    def observe(self, step: int, source: Ints, target: Ints, sent_ns: Ints, received_ns: Ints) -> None:
        """One step's messages: their domains, and when they were sent and received by the domains' own clocks."""
        low, high = np.minimum(source, target), np.maximum(source, target)
        parts: list[tuple[int, int, int, int]] = []
        for one, other in np.unique(np.stack([low, high], axis=1)[low != high], axis=0).tolist():
            there, back = (source == one) & (target == other), (source == other) & (target == one)
            if there.any() and back.any():
                ahead = int((received_ns - sent_ns)[there].min())
                behind = int((received_ns - sent_ns)[back].min())
                if ahead + behind >= 0:  # else the clocks within a domain are not aligned yet
                    parts.append((one, other, int(np.median(sent_ns[there])), (ahead - behind) // 2))
                    self._widen(one, other, (ahead + behind) / 2)
        if parts:
            self._fit(step, parts)

    def correction(self, domain: int, at_ns: int) -> float:
        """To be added to the domain's times; 0 while the fit is not in use."""
        return self.alignment.correction(domain, at_ns) if domain < self.alignment.clocks else 0.0

    def error_ns(self, domain: int, at_ns: int) -> int:
        """Uncertainty of the domain's times beside those of others: the fit's, and half the bounds' width. -1 where
        nothing tells."""
        fit = self.alignment.error_ns(domain, at_ns) if domain < self.alignment.clocks else -1
        widths = self._half_widths.get(domain)
        return fit + round(float(np.median(widths))) if fit >= 0 and widths else -1

    def _widen(self, one: int, other: int, half_width: float) -> None:
        for domain in (one, other):
            self._half_widths.setdefault(domain, deque(maxlen=KEPT_WIDTHS)).append(half_width)

    def _fit(self, step: int, parts: list[tuple[int, int, int, int]]) -> None:
        """parts: (domain, other domain, time, how far the other's clock is ahead)."""
        one, other, at_ns, offset_ns = (np.array(column, np.int64) for column in zip(*parts, strict=True))
        self.alignment.grow(int(other.max()) + 1)
        self.alignment.observe(
            Anchors(
                group=np.repeat(np.arange(len(one)), 2),
                kind=np.zeros(2 * len(one), np.int64),
                sequence=np.repeat(step + SEQUENCE_STRIDE * one, 2),
                clock=np.stack([one, other], axis=1).reshape(-1),
                end_ns=np.stack([at_ns, at_ns + offset_ns], axis=1).reshape(-1),
            )
        )
