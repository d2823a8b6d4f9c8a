"""A fabric between ranks whose other transfers are as fast as ever: its share of the ranks is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.nccl import NcclRecords
from bench.scale.scenarios import QUIET
from megatronapp.core.findings import Finding, Kind
from megatronapp.detector.signals.links import SENDS
from megatronapp.detector.steps import StepTable

LAYOUT, ONSET, STEPS = Layout(pp=4, dp=3, ranks_per_node=1), 40, 60


class SlowBetween(NcclRecords):
    """From ONSET on the messages of these pairs take five times as long, both ways; NCCL tells nothing."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        super().__init__(LAYOUT)
        self._pairs = {*pairs, *((receiver, sender) for sender, receiver in pairs)}

    def recorded(self, table: StepTable) -> StepTable:
        rows, ranks = table.rows, table.ranks.rank[table.rows.rank]
        sends = [table.operations[operation] in SENDS for operation in rows.operation]
        pairs = [pair in self._pairs for pair in zip(ranks.tolist(), rows.peer.tolist(), strict=True)]
        times = np.where(np.logical_and(sends, pairs) & (table.step >= ONSET), 5.0, 1.0)
        slower = {name: getattr(rows, name) * times for name in ("duration", "duration_min", "duration_max")}
        return replace(table, rows=replace(rows, **slower))


def test_what_lies_between_ranks_that_other_transfers_clear_is_a_share_of_the_ranks() -> None:
    """Middle stages send as fast as ever to the outer ones, which clears each of them both ways."""
    middle = [(LAYOUT.rank(0, replica, 1), LAYOUT.rank(0, replica, 2)) for replica in range(LAYOUT.dp)]
    job = Job(Spec(LAYOUT, 15.0, QUIET), 0)
    feed, last = TableFeed(job, SlowBetween(middle)), dict[str, Finding]()
    for _ in range(STEPS):
        last.update({finding.id: finding for _, finding in feed.step(job.step())})

    (finding,) = last.values()
    assert finding.kind is Kind.FABRIC_SLOW
    assert "The links of 50% of the ranks are slow" in finding.summary
