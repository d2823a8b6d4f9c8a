"""Nodes: alarms of ranks that are their node's, as all of it is slow.

Power, cooling and other load slow a whole node now and then, and that ends by itself. That eight ranks show it makes
it no more lasting than if one did: it is one excursion, and is judged by how long it goes on (excursions.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megatronapp.detector.statistics.excursions import PAGED, TOLD, Excursions
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.steps import Floats, Ints, RankTable

SHARED = 0.5
"""A rank's slowness is its node's where the node's others show more of it than not."""
LEAST_RANKS = 3
"""Of a node: with fewer there are no two others that agree."""


@dataclass(slots=True)
class SlowNode:
    ranks: Mapping[int, str]
    """Those that have had an alarm which the others share, and the signal of it."""
    since: int
    steps: int
    """That were judged since then."""
    opened: bool = False
    paged: bool = False


class Nodes:
    def __init__(self) -> None:
        self.slow: dict[str, SlowNode] = {}
        """By name."""
        self._usual = Excursions()

    def observe(self, ranks: RankTable, monitors: Mapping[str, Monitor]) -> None:
        """Look at the monitors of the ranks' speed, the more telling first, after they have seen a step."""
        alarmed: dict[int, str] = {}
        for signal, monitor in monitors.items():
            for rank in np.flatnonzero(monitor.alarmed).tolist():
                alarmed.setdefault(rank, signal)
        places = np.flatnonzero(np.isin(ranks.rank, list(alarmed)))
        for node in {*self.slow, *ranks.node[places].tolist()}:
            members = ranks.rank[ranks.node == node]
            mine = {rank: alarmed[rank] for rank in members.tolist() if rank in alarmed}
            judged = LEAST_RANKS <= len(members) <= len(ranks) / 2
            shared = {r: s for r, s in mine.items() if judged and _is_shared(r, members, monitors[s])}
            for rank in set(mine) - set(shared):
                self._judge_anew(node, rank, monitors)
            self._follow(node, shared, monitors)

    def _judge_anew(self, node: str, rank: int, monitors: Mapping[str, Monitor]) -> None:
        """An alarm that was the node's, whose others do not show it any more: whether it is the rank's own, steps after
        the node's excursion must tell."""
        slow = self.slow.get(node)
        if slow is not None and rank in slow.ranks:
            for monitor in monitors.values():
                if rank < len(monitor) and monitor.alarmed[rank]:
                    monitor.acquit(rank)
            slow.ranks = {other: its for other, its in slow.ranks.items() if other != rank}

    def _follow(self, node: str, shared: Mapping[int, str], monitors: Mapping[str, Monitor]) -> None:
        slow = self.slow.get(node)
        if slow is not None and not shared:
            if not slow.paged:
                self._usual.learn(slow.steps)
            del self.slow[node]
        elif slow is not None:
            slow.ranks, slow.steps = {**slow.ranks, **shared}, slow.steps + 1
        elif shared:
            rank, signal = min(shared.items(), key=lambda item: int(monitors[item[1]].since[item[0]]))
            monitor = monitors[signal]
            slow = self.slow[node] = SlowNode(shared, int(monitor.since[rank]), monitor.steps_since(rank))
        if slow is not None:
            slow.opened |= slow.steps >= self._usual.outlived_by_one_in(TOLD)
            slow.paged |= slow.steps >= self._usual.outlived_by_one_in(PAGED)


def _is_shared(rank: int, members: Ints, monitor: Monitor) -> bool:
    """Whether the others of the node show it too, in the same steps and by the same measure, as in an attempt's first
    steps their histories may be of the node's excursion. Means, so that all of them fade together.

    Of a rank without a history the device's own part is in it, too: then it is its node's also where that is slow, and
    the rank slower than the others by no more than healthy ones may be."""
    others = members[(members != rank) & (members < len(monitor))]
    steps = monitor.steps_since(rank)
    shown = _means(monitor.excess_beside(rank, others)[:, :steps])
    if len(shown) < LEAST_RANKS - 1:
        return False
    own = min(float(monitor.effect[rank]), float(_means(monitor.excess(rank)[None, :steps])[0]))
    node, allowed = float(np.median(shown)), float(monitor.allowed[rank])
    if node >= SHARED * own:
        return True
    slow_node = node >= allowed / math.sqrt(len(shown))
    return slow_node and not monitor.ready[rank] and own - node <= allowed


def _means(rows: Floats) -> Floats:
    """Of the rows that hold a number, beside nan."""
    known = np.isfinite(rows)
    some = known.any(axis=1)
    means: Floats = np.where(known, rows, 0.0)[some].sum(axis=1) / known[some].sum(axis=1)
    return means
