"""Both ways into the engine are one, and messages suffer what they are said to."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from bench.scale.delivery import Delivery
from bench.scale.faults import Fault, What
from bench.scale.feeds import MessageFeed, TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.noise import Beside, DeviceSpread, Jitter
from bench.scale.protocol import Speaker
from bench.scale.tables import RowBook
from bench.scale.workload import Workload
from megatronapp.core.trace.validate import check_rank_message
from megatronapp.detector.engine import Engine
from megatronapp.detector.steps import StepTable

LAYOUTS = [
    Layout(pp=1, dp=8),
    Layout(pp=4, dp=2, tp=2),
    Layout(pp=2, dp=4, vpp=2, microbatches=4),
    Layout(pp=2, dp=4, tp=2, ep=4),
]


def spec_of(layout: Layout, *faults: Fault) -> Spec:
    return Spec(
        layout,
        5.0,
        (DeviceSpread(0.005), Jitter(0.005)),
        Beside(garbage_every=5),
        Workload(sequence_spread=0.2, expert_spread=0.2),
        faults,
        restarts=(20,),
        save_every=7,
    )


def assert_equal(one: Any, other: Any) -> None:
    for field in fields(one):
        mine, others = getattr(one, field.name), getattr(other, field.name)
        if hasattr(mine, "__dataclass_fields__") and field.name in ("ranks", "rows"):
            assert_equal(mine, others)
        elif isinstance(mine, np.ndarray):
            assert np.array_equal(mine, others, equal_nan=mine.dtype.kind == "f"), field.name
        else:
            assert mine == others, field.name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_and_decoded_messages_are_the_same_tables(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StepTable] = []
    judge = Engine._judge
    monkeypatch.setattr(Engine, "_judge", lambda self, tables, now: seen.extend(tables) or judge(self, tables, now))

    tables = []
    for feed_of in (TableFeed, MessageFeed):
        seen.clear()
        job = Job(spec_of(layout), 3)
        feed = feed_of(job)
        for _ in range(24):
            list(feed.step(job.step()))
        tables.append(list(seen))

    assert [table.step for table in tables[0]] == list(range(1, 25))
    for one, other in zip(*tables, strict=True):
        assert_equal(one, other)


def test_both_ways_find_the_same() -> None:
    findings = []
    for feed_of in (TableFeed, MessageFeed):
        job = Job(
            replace(spec_of(Layout(pp=2, dp=4), Fault(What.COMPUTE, (5,), 1.1, 40)), restarts=(), save_every=0), 1
        )
        feed = feed_of(job)
        findings.append([finding for _ in range(50) for _, finding in feed.step(job.step())])

    # The summaries of a step arrive one after the other, and it is judged with the last.
    told = [[(f.kind, f.cause, f.ranks, f.page, f.since_step, f.effect_ratio) for f in each] for each in findings]
    assert told[0] == told[1]
    assert any(finding.page and finding.ranks == (5,) for finding in findings[0])


def test_every_message_is_one_that_the_platform_takes() -> None:
    job = Job(spec_of(Layout(pp=2, dp=4, tp=2, ep=2)), 1)
    speaker = Speaker(job, RowBook(job.families))
    hellos = [speaker.hello(rank, 1) for rank in range(job.layout.world)]
    step = job.step()
    beats = [speaker.heartbeat(rank, 1, step.began_unix_ns) for rank in range(job.layout.world)]

    for each in (hellos, speaker.summaries(step), beats):
        for rank, message in enumerate(each):
            check_rank_message(speaker.wrapped(rank, 1, message, step.began_unix_ns))


def arrivals(delivery: Delivery, *faults: Fault) -> list[tuple[int, int]]:
    """(step, rank) of each message in order of arrival, a hundred steps of 16 ranks."""
    job = Job(Spec(Layout(pp=1, dp=16), 1.0, faults=faults), 5)
    speaker, way = Speaker(job, RowBook(job.families)), delivery.begin(job)
    for rank in range(16):
        speaker.hello(rank, 1)
    found = []
    for _ in range(100):
        step = job.step()
        for rank, message in enumerate(speaker.summaries(step)):
            way.send(step.number, speaker.wrapped(rank, 1, message, int(step.ended_unix_ns[rank])))
        found += way.arrived(int(step.ended_unix_ns.max()))
    found += way.arrived(2**63)
    return [(message.message.summary.step, message.identity.rank) for message in found]


def test_without_trouble_every_message_arrives_once_in_order() -> None:
    arrived = arrivals(Delivery())

    assert arrived == [(step, rank) for step in range(1, 101) for rank in range(16)]


def test_a_lost_message_never_arrives() -> None:
    arrived = arrivals(Delivery(lost=0.1))

    assert len(arrived) == len(set(arrived))
    assert 1600 * 0.85 < len(arrived) < 1600 * 0.95


def test_a_late_message_arrives_after_later_ones() -> None:
    arrived = arrivals(Delivery(late=0.1))

    assert sorted(arrived) == [(step, rank) for step in range(1, 101) for rank in range(16)]
    assert arrived != sorted(arrived)


def test_a_doubled_message_arrives_twice() -> None:
    arrived = arrivals(Delivery(doubled=0.1))

    assert len(set(arrived)) == 1600
    assert 1600 * 1.05 < len(arrived) < 1600 * 1.15


def test_a_culprit_that_falls_silent_is_not_heard_again() -> None:
    arrived = arrivals(Delivery(), Fault(What.COMPUTE, (3,), 1.1, 50, silent=True))

    assert max(step for step, rank in arrived if rank == 3) == 49
    assert len(arrived) == 1600 - 51


def test_what_a_late_duplicated_stream_tells_is_judged_all_the_same() -> None:
    job = Job(Spec(Layout(pp=1, dp=16), 5.0, (Jitter(0.005),), faults=(Fault(What.COMPUTE, (3,), 1.2, 40),)), 5)
    feed = MessageFeed(job, Delivery(late=0.02, doubled=0.1))

    findings = [finding for _ in range(60) for _, finding in feed.step(job.step())]

    assert {finding.ranks for finding in findings if finding.page} == {(3,)}
