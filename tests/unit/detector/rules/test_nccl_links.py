"""Slow network cards, stalled sends and late starts, as NCCL tells of them in simulated jobs."""

from __future__ import annotations

import pytest

from bench.scale.faults import Fault, What
from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.nccl import NcclFault, NcclRecords
from bench.scale.scenarios import QUIET
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.v1 import trace_pb2
from tests.support.detecting import seeds

ONSET, STEPS = 32, 44
SMALL = Layout(pp=2, dp=4, tp=8)
DEEP = Layout(pp=5, dp=1, tp=8)
"""Ranks that send to the stage before and the stage behind."""
LARGE = Layout(pp=4, dp=32, tp=8)
"""1,024 ranks."""


def run(layout: Layout, *operations: NcclFault, faults: tuple[Fault, ...] = (), seed: int = 0, steps: int = STEPS):
    job = Job(Spec(layout, 15.0, QUIET, faults=faults), seed)
    feed, last = TableFeed(job, NcclRecords(layout, operations, seed)), dict[str, Finding]()
    for _ in range(steps):
        last.update({finding.id: finding for _, finding in feed.step(job.step())})
    return list(last.values())


def nic(rank: int, ratio: float = 3.0, step: int = ONSET, until: int = 1 << 30) -> NcclFault:
    return NcclFault("nic", (rank,), ratio, step, until)


def test_a_rank_that_sends_slowly_is_named_and_nobody_else_of_its_ring() -> None:
    (finding,) = run(SMALL, nic(19))

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_LINK, Cause.NIC, (19,))
    assert "rank 19 sends" in finding.summary
    assert finding.evidence[0].signal == "nccl_send"


def link(sender: int, receiver: int, ratio: float = 8.0) -> NcclFault:
    return NcclFault("link", (sender, receiver), ratio, ONSET)


def test_a_send_that_is_slow_to_one_rank_alone_is_told_with_that_rank() -> None:
    (finding,) = run(DEEP, link(19, 27))

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_LINK, Cause.NIC, (19, 27))
    assert "rank 19 sends to rank 27 takes" in finding.summary


def test_two_ends_of_a_link_that_is_slow_both_ways_are_one_finding() -> None:
    (finding,) = run(DEEP, link(19, 27), link(27, 19))

    assert finding.ranks == (19, 27)


def test_what_several_send_slowly_to_one_is_that_ranks() -> None:
    (finding,) = run(DEEP, link(11, 19), link(27, 19))

    assert finding.ranks == (19,)
    assert "rank 11 sends to rank 19 and rank 27 to rank 19 takes" in finding.summary


def test_the_cards_of_a_node_are_one_finding_of_the_node() -> None:
    cards = (16, 18, 19, 21)

    (finding,) = run(SMALL, *(nic(rank, 2.0 + place) for place, rank in enumerate(cards)))

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_LINK, Cause.NIC, cards)
    assert finding.node
    assert f"ranks 16, 18, 19 and 21 of node {finding.node} send" in finding.summary


def test_a_send_that_stalls_in_each_step_is_found() -> None:
    (finding,) = run(SMALL, NcclFault("stalled", (19,), 0.2, ONSET))

    assert (finding.kind, finding.ranks) == (Kind.SLOW_LINK, (19,))


def test_one_that_was_slow_from_the_first_step_on_is_found_beside_its_peers() -> None:
    (finding,) = run(SMALL, nic(19, step=0))

    assert (finding.ranks, finding.evidence[0].signal) == ((19,), "nccl_send_beside")


def test_it_pages_only_where_steps_take_longer() -> None:
    (hidden,) = run(SMALL, nic(19))
    (felt,) = run(SMALL, nic(19), faults=(Fault(What.LINK, (19,), 5.0, ONSET),))

    assert (hidden.page, felt.page) == (False, True)
    assert felt.ranks == (19,)


def test_several_at_once_are_several_findings() -> None:
    assert {finding.ranks for finding in run(SMALL, nic(3), nic(44, 2.5))} == {(3,), (44,)}


def test_the_links_of_many_nodes_are_the_fabric() -> None:
    slow = NcclFault("nic", tuple(range(0, 64, 2)), 3.0, ONSET)

    assert {(finding.kind, finding.ranks) for finding in run(SMALL, slow)} == {(Kind.FABRIC_SLOW, ())}


def test_what_has_passed_is_resolved() -> None:
    (finding,) = run(SMALL, nic(19, until=ONSET + 6), steps=STEPS + 16)

    assert finding.state is State.RESOLVED


def test_who_begins_last_without_a_reason_is_unknown() -> None:
    (finding,) = run(SMALL, NcclFault("late", (19,), 0.5, ONSET))

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.UNKNOWN, Cause.UNKNOWN, (19,))


def test_who_begins_last_once_is_nobodys_fault() -> None:
    assert run(SMALL, NcclFault("late", (19,), 0.5, ONSET, ONSET + 1)) == []


@pytest.mark.parametrize("seed", seeds(6))
def test_nobody_is_accused_in_a_clean_job(seed: int) -> None:
    assert run(SMALL, seed=seed, steps=64) == []


class Untimed(NcclRecords):
    """Of a job that records calls alone: nobody knows who sits where, or how long anything takes."""

    def of_step(self, step):
        return {rank: [trace_pb2.NcclTally(operation="all_reduce", count=1)] for rank in range(8)}


def test_a_job_whose_nccl_tells_calls_alone_is_judged_as_ever() -> None:
    job = Job(Spec(Layout(pp=1, dp=8), 15.0, QUIET, faults=(Fault(What.COMPUTE, (3,), 1.3, ONSET),)), 0)
    feed, found = TableFeed(job, Untimed(job.layout)), set[tuple[int, ...]]()
    for _ in range(STEPS):
        found |= {finding.ranks for _, finding in feed.step(job.step())}

    assert found == {(3,)}


def test_a_slow_device_is_told_as_one_and_not_as_a_link() -> None:
    findings = run(SMALL, faults=(Fault(What.COMPUTE, (19,), 1.2, ONSET),))

    assert {(finding.kind, finding.ranks) for finding in findings} == {(Kind.SLOW_GPU, (19,))}


@pytest.mark.long
def test_of_1024_ranks_the_three_that_send_slowly_are_named_alone() -> None:
    slow = (77, 500, 901)

    findings = run(LARGE, nic(77), nic(500, 2.0), nic(901, 4.0))

    assert {finding.ranks for finding in findings if finding.kind is Kind.SLOW_LINK} == {(rank,) for rank in slow}
    assert len(findings) == len(slow)


@pytest.mark.long
def test_of_1024_ranks_a_node_and_a_link_are_two_findings() -> None:
    node = tuple(range(512, 520))

    findings = run(LARGE, NcclFault("nic", node, 3.0, ONSET), link(300, 556))

    assert {finding.ranks for finding in findings} == {node, (300, 556)}


@pytest.mark.long
def test_of_1024_ranks_half_a_fabric_is_told_with_its_share() -> None:
    (finding,) = run(LARGE, NcclFault("nic", tuple(range(512)), 3.0, ONSET))

    assert (finding.kind, finding.ranks) == (Kind.FABRIC_SLOW, ())
    assert "512 of 1024 ranks (50%)" in finding.summary


@pytest.mark.long
def test_of_1024_healthy_ranks_none_is_accused() -> None:
    assert run(LARGE, steps=64) == []
