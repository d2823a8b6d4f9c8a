"""Exposure: how long was waited for the messages over a rank's link, where messages run beside passes.

The time of such a message itself is not seen: its send is over once it is posted, and its receive takes no time where
the message was there already. What was waited for it also tells how late its sender was. So exposure neither raises an
alarm nor clears anybody; it tells apart ranks of whom it is known that the link of one is slow.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist

import numpy as np

from megatronapp.core.trace.span_names import RECEIVES
from megatronapp.detector.signals.links import Messages
from megatronapp.detector.statistics import scale
from megatronapp.detector.statistics.monitor import CLEAN, WARM_UP
from megatronapp.detector.statistics.offsets import FEW_SPREADS
from megatronapp.detector.steps import Floats, Ints, StepTable

FASTEST_LINK = 0.9e12
"""Bytes a second, one way: NVLink 5, 1.8 TB/s both ways (NVIDIA, GB200 NVL72). Over a faster one messages count as
hidden, and say nothing."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""A median's standard error over a mean's, of normal samples."""
ALIKE = 0.5
"""Links are slow together that show at least this share of the largest excess."""


def hidden(sent: Messages) -> np.ndarray:
    """Which messages took less time than any link needs for them: they ran beside something else."""
    return np.asarray(sent.seconds * FASTEST_LINK * sent.count < sent.bytes)


def waited(table: StepTable) -> Floats:
    """(ranks,): seconds of the step that a rank waited for its messages, and its neighbours for those from it."""
    rows, ranks = table.rows, table.ranks.rank
    receives = [table.operations.index(name) for name in RECEIVES if name in table.operations]
    mine = np.flatnonzero(np.isin(rows.operation, receives) & np.isin(rows.peer, ranks))
    ends = np.concatenate([rows.rank[mine], np.searchsorted(ranks, rows.peer[mine])])
    return np.bincount(ends, np.tile(rows.duration[mine], 2), len(ranks)).astype(np.float64)


class Exposure:
    """Of each rank's link, before transfers were found slow and since."""

    def __init__(self) -> None:
        self._ranks: Ints = np.zeros(0, np.int64)
        self._hidden: frozenset[int] = frozenset()
        self._usual: deque[tuple[int, Floats]] = deque(maxlen=CLEAN)
        self._since: deque[tuple[int, Floats]] = deque(maxlen=CLEAN)
        self._known: frozenset[int] = frozenset()
        """Who stood out since transfers are slow: one step that hides it is no doubt."""

    def observe(self, table: StepTable, sent: Messages, *, slow: bool) -> None:
        """slow: transfers are under alarm after this step."""
        if not np.array_equal(table.ranks.rank, self._ranks):
            self._begin(table.ranks.rank)
        if table.missing:
            return
        unseen = hidden(sent)
        self._hidden = frozenset(sent.sender[unseen].tolist()) | frozenset(sent.peer[unseen].tolist())
        if slow:
            self._since.append((table.step, waited(table)))
        else:
            self._since.clear()
            self._known = frozenset()
            self._usual.append((table.step, waited(table)))

    def _begin(self, ranks: Ints) -> None:
        self._ranks, self._hidden, self._known = ranks, frozenset(), frozenset()
        self._usual.clear()
        self._since.clear()

    def may_tell(self, ranks: frozenset[int]) -> bool:
        """Whether messages of all these ranks run beside passes."""
        return len(ranks) > 1 and ranks <= self._hidden

    def standing_out(self, ranks: frozenset[int], since_step: int) -> frozenset[int]:
        """Those for whose messages was waited longer since a step, beside the others of them, than chance makes likely
        in one of FEW_SPREADS such groups; none where nothing tells."""
        if not self.may_tell(ranks):
            return frozenset()
        members = np.array(sorted(ranks))
        values = [(step, row[np.searchsorted(self._ranks, members)]) for step, row in (*self._usual, *self._since)]
        before = [row for step, row in values if step < since_step]
        now = [row for step, row in values if step >= since_step]
        if len(before) >= WARM_UP and now:
            shift, chance = _shift(np.stack(before), np.stack(now))
            found = members[(shift > chance) & (shift >= ALIKE * shift.max())]
            self._known |= frozenset(found.tolist())
        return self._known & ranks


def _shift(before: Floats, now: Floats) -> tuple[Floats, Floats]:
    """Of (steps, ranks): how much longer each rank is waited for beside the others, and what chance reaches."""
    before, now = ((values - np.median(values, axis=1, keepdims=True)).T for values in (before, now))
    usual = scale.location(before)
    samples = np.full(len(before), before.shape[1])
    sigma = scale.upper_bound(scale.pooled(scale.scale(before, usual), samples), samples)
    sigma *= scale.correlation_factor(before - usual[:, None])
    rarity = NormalDist().inv_cdf(1 - 1 / (FEW_SPREADS * len(before)))
    return scale.location(now) - usual, rarity * MEDIAN_ERROR * sigma / math.sqrt(now.shape[1])
