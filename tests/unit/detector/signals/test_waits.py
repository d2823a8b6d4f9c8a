from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from megatronapp.core.trace.membership import Membership
from megatronapp.detector.assemble import Assembler
from megatronapp.detector.signals.waits import waited_for_untold
from megatronapp.detector.steps import Floats, StepTable
from megatronapp.v1 import trace_pb2
from tests.support.detecting import detect
from tests.support.simulated import GPU, Fault, Job, Layout

LATE_NS = 10**12


def table_of(layout: Layout, untold: set[int]) -> StepTable:
    """A step of which these ranks have not told."""
    job, membership, assembler = Job(layout, GPU, (), seed=1), Membership(1), Assembler()
    tables = list[StepTable]()
    for message in [*job.hellos(), *(m for m in job.step(1) if m.identity.rank not in untold)]:
        process = membership.apply(message)
        assert process is not None
        tables += assembler.feed(process, message)
    return [*tables, *assembler.expire(job.clock_ns + LATE_NS)][0]


def as_defined(table: StepTable, rank: int) -> float:
    """Of the rank with this index."""
    rows, stage = table.rows, table.ranks.pipeline
    collective = table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE
    found = np.nan
    for ranks in sorted({frozenset(each.ranks) for each in table.communicators}, key=len, reverse=True):
        members = [list(table.ranks.rank).index(each) for each in ranks]
        if rank not in members or len(members) < 2 or len({stage[member] for member in members}) > 1:
            continue
        alike = [group for group, each in enumerate(table.communicators) if set(each.ranks) == ranks]
        of_ranks = collective & np.isin(rows.communicator, alike)
        spent = [rows.duration[of_ranks & (rows.rank == other)] for other in members if other != rank]
        found = min(each.sum() for each in spent) if all(map(len, spent)) else np.nan
    return found


@pytest.mark.parametrize("untold", [set(), {3}, {0, 5}], ids=str)
@pytest.mark.parametrize(
    "layout", [Layout(pp=1, dp=8), Layout(pp=1, dp=2, tp=4), Layout(pp=2, dp=2, tp=2), Layout(pp=4, dp=2)], ids=str
)
def test_a_rank_is_waited_for_as_long_as_the_others_of_its_smallest_communicator_wait(
    layout: Layout, untold: set[int]
) -> None:
    table = table_of(layout, untold)

    waited: Floats = waited_for_untold(table)

    expected = [as_defined(table, rank) for rank in range(len(table.ranks))]
    np.testing.assert_allclose(waited, expected)
    assert len(untold) > 1 or np.isfinite(waited).any()


def test_a_second_communicator_of_the_same_members_hides_no_wait() -> None:
    """With one stage the model-parallel group has the tensor group's members, and they wait for nobody in it."""
    table = table_of(Layout(pp=1, dp=2, tp=4), untold={3})
    alone: Floats = waited_for_untold(table)

    twice: Floats = waited_for_untold(with_second_communicator(table, of=3))

    assert alone[3] > 0
    assert twice[3] == pytest.approx(alone[3], rel=1e-6)


def with_second_communicator(table: StepTable, of: int) -> StepTable:
    """The members of the smallest communicator of rank `of` also call one that takes them no time."""
    mine = [group for group in table.communicators if of in group.ranks and len(group.ranks) > 1]
    smallest = min(mine, key=lambda group: len(group.ranks))
    rows = table.rows
    copied = np.flatnonzero(rows.communicator == table.communicators.index(smallest))
    columns = {each.name: getattr(rows, each.name) for each in fields(rows)}
    added = {name: column[copied] for name, column in columns.items()}
    added |= {"communicator": np.full(len(copied), len(table.communicators)), "duration": np.full(len(copied), 1e-12)}
    joined = replace(rows, **{name: np.concatenate([columns[name], added[name]]) for name in columns})
    return replace(table, communicators=(*table.communicators, replace(smallest, id="second")), rows=joined)


def test_what_a_device_computes_longer_is_no_wait_for_another_reason() -> None:
    """Before it is found slow, as where devices usually wander by as much."""
    verdicts = detect(Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (1,), 30, 1.03),), seed=1), 31)

    wait = verdicts.engine.judge.monitors["wait"].series(1)

    assert wait.steps[-2:] == (30, 31)
    assert max(wait.values[-2:]) < 0.01


def test_what_others_wait_for_a_rank_that_computes_as_its_peers_has_another_reason() -> None:
    verdicts = detect(Job(Layout(pp=1, dp=8), GPU, (Fault("host", (1,), 30, 0.03),), seed=1), 31)

    wait = verdicts.engine.judge.monitors["wait"].series(1)

    assert min(wait.values[-2:]) > 0.02
