"""Programs that are attached to, of which less is seen than of the trainer: nobody is accused for what is not told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from megatronapp.core.findings import Finding, Kind
from megatronapp.core.trace import columns
from megatronapp.v1 import trace_pb2
from tests.support.detecting import detect
from tests.support.simulated import NAMES, Fault, Job, Layout

ONSET, STEPS = 36, 48
MESSAGES = ("forward_send", "forward_recv", "backward_send", "backward_recv")
TIMES = ("duration_sum_ns", "duration_min_ns", "duration_max_ns")


@dataclass
class Attached(Job):
    unseen: tuple[str, ...] = ()
    sync_holds: str = ""
    """An unseen operation whose time is a part of grad_sync."""

    def _summary(self, step: int, rank: int, row: dict[str, float]) -> trace_pb2.StepSummary:
        whole = super()._summary(step, rank, row)
        table = {name: np.array(column) for name, column in columns.summary_columns(whole).items()}
        names = [NAMES[index] for index in table["name"].astype(int)]
        if self.sync_holds:
            for time in TIMES:
                table[time][names.index("grad_sync")] += table[time][names.index(self.sync_holds)]
        seen = np.array([name not in self.unseen for name in names])
        summary = trace_pb2.StepSummary(step=step, duration_ns=whole.duration_ns, names=NAMES, cpu_ns=whole.cpu_ns)
        columns.fill_summary(summary, {name: column[seen] for name, column in table.items()})
        return summary


def paged(layout: Layout, kind: str, size: float, **seen: Any) -> list[Finding]:
    job = Attached(layout, faults=(Fault(kind, (1,), ONSET, size),), seed=1, **seen)
    return detect(job, STEPS).paged()


@pytest.mark.parametrize("kind", ["compute", "data"])
def test_who_waits_for_messages_that_are_not_seen_does_not_stand_still(kind: str) -> None:
    [finding] = paged(Layout(pp=2, dp=2), kind, 1.3 if kind == "compute" else 0.1, unseen=MESSAGES)

    assert finding.ranks == (1,)
    assert finding.kind is (Kind.SLOW_GPU if kind == "compute" else Kind.SLOW_HOST)


def test_a_host_that_stands_still_is_unknown_where_it_may_be_waiting() -> None:
    found = paged(Layout(pp=2, dp=2), "host", 0.1, unseen=MESSAGES)

    assert {finding.kind for finding in found} == {Kind.UNKNOWN}


def test_who_waits_in_a_reduction_that_is_not_seen_has_no_slow_link() -> None:
    [finding] = paged(Layout(pp=1, dp=2), "compute", 1.3, unseen=(*MESSAGES, "all_reduce"), sync_holds="all_reduce")

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (1,))


def test_where_the_optimizer_alone_is_seen_beside_the_passes_nobody_stands_still() -> None:
    [finding] = paged(Layout(pp=1, dp=2), "compute", 1.3, unseen=("all_reduce", "grad_sync"))

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (1,))
