"""Slow links and switches in simulated jobs: who is named, and that what follows from them is no finding of its own."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scale.faults import Fault, What
from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.scenarios import INTERLEAVED, QUIET, layouts
from megatronapp.core.findings import Cause, Finding, Kind
from tests.support.detecting import seeds

ONSET, STEPS = 40, 64
SMALL = Layout(pp=4, dp=4, tp=2)


def findings_of(layout: Layout, *faults: Fault, seed: int = 0) -> list[Finding]:
    """The last word on each finding of a job."""
    job = Job(Spec(layout, 15.0, QUIET, faults=faults), seed)
    feed, last = TableFeed(job), dict[str, Finding]()
    for _ in range(STEPS):
        last.update({finding.id: finding for _, finding in feed.step(job.step())})
    return list(last.values())


def link(rank: int, ratio: float, step: int = ONSET) -> Fault:
    return Fault(What.LINK, (rank,), ratio, step)


@pytest.mark.parametrize("rank", [0, SMALL.rank(0, 1, 2), SMALL.rank(1, 3, 3)], ids=["first", "middle", "last"])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_slow_link_is_one_finding_on_one_rank_whatever_it_delays(rank: int, seed: int) -> None:
    (finding,) = findings_of(SMALL, link(rank, 5.0), seed=seed)

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.SLOW_LINK, Cause.NIC, (rank,), True)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=layout.name, marks=pytest.mark.scale if number % 3 else ())
        for number, layout in enumerate(layouts(64, kind=INTERLEAVED))
    ],
)
def test_a_slow_link_is_told_from_its_groups_others_where_messages_run_beside_passes(layout: Layout) -> None:
    rank = layout.rank(layout.tp - 1, 1, 1)

    (finding,) = findings_of(layout, link(rank, 5.0))

    assert (finding.kind, finding.ranks, finding.page) == (Kind.SLOW_LINK, (rank,), True)


def test_a_rank_is_not_blamed_for_a_link_because_it_is_late_itself() -> None:
    layout = Layout(pp=2, dp=8, tp=2, vpp=2)
    fast, slow = layout.rank(0, 3, 1), layout.rank(0, 5, 1)

    findings = findings_of(layout, link(fast, 5.0), Fault(What.COMPUTE, (slow,), 1.1, ONSET))

    assert {(f.kind, f.ranks) for f in findings if f.page} == {(Kind.SLOW_LINK, (fast,)), (Kind.SLOW_GPU, (slow,))}


def test_a_switch_is_the_fabric_where_messages_run_beside_passes() -> None:
    layout = Layout(pp=2, dp=16, tp=2, vpp=2)

    findings = findings_of(layout, Fault(What.SWITCH, tuple(range(40)), 5.0, ONSET))

    assert {(f.kind, f.ranks) for f in findings if f.page} == {(Kind.FABRIC_SLOW, ())}


@pytest.mark.parametrize("seed", seeds(4))
def test_it_is_told_from_its_groups_other_members_before_its_messages_reach_their_own_alarm(seed: int) -> None:
    (finding,) = findings_of(SMALL, link(5, 1.3), seed=seed)

    assert finding.ranks == (5,)


@pytest.mark.parametrize(
    "other",
    [
        SMALL.rank(0, 2, 0),
        *(pytest.param(rank, marks=pytest.mark.scale) for rank in (SMALL.rank(1, 2, 1), SMALL.rank(0, 0, 2))),
    ],
)
def test_two_slow_links_are_two_findings(other: int) -> None:
    findings = findings_of(SMALL, link(0, 5.0), link(other, 5.0, ONSET + 3))

    assert {finding.ranks for finding in findings if finding.page} == {(0,), (other,)}


def test_a_slow_gpu_beside_a_slow_link_is_a_finding_of_its_own() -> None:
    slow = Fault(What.COMPUTE, (SMALL.rank(1, 0, 1),), 1.1, ONSET)

    findings = findings_of(SMALL, link(0, 5.0), slow)

    assert {(f.kind, f.ranks) for f in findings if f.page} == {(Kind.SLOW_LINK, (0,)), (Kind.SLOW_GPU, slow.ranks)}


@pytest.mark.parametrize("layout", [SMALL, Layout(pp=1, dp=8, tp=4), Layout(pp=2, dp=8, tp=2)], ids=lambda of: of.name)
def test_a_switch_that_slows_most_links_is_the_fabric_and_no_link(layout: Layout) -> None:
    most = tuple(np.flatnonzero(layout.node < 0.6 * layout.nodes).tolist())

    (paged,) = [f for f in findings_of(layout, Fault(What.SWITCH, most, 5.0, ONSET)) if f.page]

    assert (paged.kind, paged.cause, paged.ranks) == (Kind.FABRIC_SLOW, Cause.NIC, ())
    assert "% of the ranks" in paged.summary


def test_of_the_single_group_of_a_job_it_is_told_that_nobody_can_be_named() -> None:
    (finding,) = findings_of(Layout(pp=1, dp=32), Fault(What.SWITCH, tuple(range(24)), 5.0, ONSET))

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.FABRIC_SLOW, Cause.UNKNOWN, (), True)
    assert "a single rank" in finding.summary


def test_a_slow_device_that_reduces_slowly_explains_its_group() -> None:
    both = (Fault(What.COMPUTE, (5,), 1.5, ONSET), Fault(What.LINK, (5,), 2.0, ONSET))

    paged = [finding for finding in findings_of(Layout(pp=1, dp=32), *both) if finding.page]

    assert {(finding.kind, finding.ranks) for finding in paged} == {(Kind.SLOW_GPU, (5,))}
