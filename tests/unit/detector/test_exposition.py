"""What a sender can put on the page of metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.core.metrics import job_labels
from megatronapp.core.trace import columns
from megatronapp.core.trace.group_kinds import GroupKind
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import SECONDS, Exposition
from megatronapp.detector.positions import Positions
from megatronapp.detector.progress import LAGS_SECONDS
from megatronapp.v1 import trace_pb2
from tests.support.simulated import Job, Layout

COLLECTIVE = trace_pb2.SPAN_KIND_COLLECTIVE
WAIT = "megatronapp_collective_wait_seconds"


def rename(summary: trace_pb2.StepSummary, names: list[str]) -> None:
    """Make it tell of one collective of each name alone, in its first communicator."""
    of_each = np.ones(len(names))
    table = {"name": np.arange(len(names)), "kind": of_each * COLLECTIVE, "communicator": of_each, "count": of_each}
    summary.CopyFrom(trace_pb2.StepSummary(step=summary.step, duration_ns=summary.duration_ns, names=names))
    columns.fill_summary(summary, table | {"duration_sum_ns": of_each * 1000, "peer": -of_each, "chunk": -of_each})


def waits(names: list[str], kind: str = "dp", steps: int = 3) -> list[str]:
    """The page's lines of waits in collectives after so many steps, each with other names than the one before."""
    registry, engines, job = CollectorRegistry(), Engines(), Job(Layout(pp=1, dp=2))
    exposition, hellos = Exposition(registry, engines, 16), job.hellos()
    for hello in hellos:
        for communicator in hello.message.hello.communicators:
            communicator.kind = kind
        engines.feed(hello)
    for step in range(1, steps + 1):
        for message in job.step(step):
            rename(message.message.summary, [name.format(step=step) for name in names])
            engines.feed(message)
        exposition.observe(engines.running[job.run])
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith(WAIT)]


def test_a_senders_names_of_collectives_make_no_series_of_their_own() -> None:
    lines = waits([f"collective_{{step}}_{number}" for number in range(1000)])

    assert len(lines) <= 2 * (len(SECONDS) + 4)
    assert any('group_kind="dp",namespace' in line and 'op="other"' in line for line in lines)


def test_a_senders_kind_of_group_makes_no_series_of_its_own() -> None:
    lines = waits(["all_reduce"], kind="mine")

    assert all('group_kind="other"' in line and 'op="all_reduce"' in line for line in lines)


@pytest.mark.parametrize("kind", GroupKind)
def test_a_kind_of_group_has_its_series(kind: GroupKind) -> None:
    assert all(f'group_kind="{kind}"' in line for line in waits(["all_reduce"], kind=kind))


def test_lags_of_kinds_that_a_sender_made_up_are_one_series() -> None:
    registry, engines, job = CollectorRegistry(), Engines(), Job(Layout(pp=1, dp=2))
    Exposition(registry, engines, 16)
    for hello in job.hellos():
        engines.feed(hello)
    groups = [
        trace_pb2.Communicator(index=index, id=f"{kind}:0-1", kind=kind, ranks=[0, 1])
        for index, kind in enumerate(("mine", "yours", "world"), start=1)
    ]

    for rank in (0, 1):
        frontiers = [trace_pb2.Frontier(communicator=n, completed=9 - rank * n, peer=-1) for n in (1, 2, 3)]
        engines.feed(job.heartbeat(rank, 1, frontiers, communicators=groups))

    page = generate_latest(registry).decode()
    found = re.findall(r'^megatronapp_progress_lag_operations{group_kind="(\w+)".*} (.*)$', page, re.M)
    assert sorted(found) == [("other", "2.0"), ("world", "3.0")]


def test_known_collectives_have_their_series() -> None:
    lines = waits(["all_reduce", "all_gather"], kind=GroupKind.DP)

    assert {"all_reduce", "all_gather"} == {line.partition('op="')[2].partition('"')[0] for line in lines}


def test_summaries_that_are_not_judged_are_counted_by_reason() -> None:
    registry, engines, job = CollectorRegistry(), Engines(), Job(Layout(pp=1, dp=4))
    Exposition(registry, engines, 16)
    first, second = job.step(1), job.step(2)
    far = trace_pb2.RankMessage.FromString(second[0].SerializeToString())
    far.message.seq, far.message.summary.step = 1000, 10**9
    second[1].message.summary.count = b"123"
    late = trace_pb2.RankMessage.FromString(first[0].SerializeToString())
    late.message.seq = 2000

    for message in (*job.hellos(), *first, *second, late, far):
        engines.feed(message)
    engines.running[job.run].tick(job.clock_ns + 3600 * 10**9)

    labels = job_labels(engines.running[job.run].job)
    counts = {
        reason: registry.get_sample_value("megatronapp_detector_dropped_summaries_total", {**labels, "reason": reason})
        for reason in ("late", "far", "invalid")
    }
    assert counts == {"late": 1, "far": 1, "invalid": 1}


def series_of(page: str) -> list[str]:
    return [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]


def test_two_runs_of_one_job_have_each_series_once_and_keep_them_until_both_have_ended() -> None:
    registry, engines = CollectorRegistry(), Engines()
    exposition = Exposition(registry, engines, 16)
    for run in ("first", "second"):
        job = Job(Layout(pp=1, dp=2), run=run)
        for message in (*job.hellos(), *job.step(1), *job.step(2), *job.step(3)):
            engines.feed(message)
        exposition.observe(engines.running[run])
    labels = job_labels(engines.running["first"].job)

    both = generate_latest(registry).decode()
    stopped = engines.running["first"]
    engines.forget("first", 0)
    exposition.forget(stopped)

    assert len(set(series_of(both))) == len(series_of(both))
    assert registry.get_sample_value("megatronapp_job_slowdown_ratio", labels) == 1
    assert registry.get_sample_value("megatronapp_step_duration_seconds_count", labels) == 2
    stopped = engines.running["second"]
    engines.forget("second", 0)
    exposition.forget(stopped)
    assert registry.get_sample_value("megatronapp_step_duration_seconds_count", labels) is None


def test_a_scrape_looks_at_all_ranks_once_in_some_seconds_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, engines, job = CollectorRegistry(), Engines(), Job(Layout(pp=1, dp=2))
    Exposition(registry, engines, 16)
    for message in (*job.hellos(), job.heartbeat(0, 1, [])):
        engines.feed(message)
    looked: list[int] = []
    monkeypatch.setattr(Positions, "completed", lambda own: looked.append(own.rank) or {})

    for _ in range(5):
        generate_latest(registry)
    at_once = len(looked)
    job.clock_ns += int(LAGS_SECONDS * 1e9)
    engines.feed(job.heartbeat(0, 1, []))
    generate_latest(registry)

    assert (at_once, len(looked)) == (1, 2)


def detections_of(*told: Finding, known: Sequence[Finding] = ()) -> float:
    """How many are counted when these are told one after the other."""
    registry = CollectorRegistry()
    exposition = Exposition(registry, Engines(), 16)
    for finding in known:
        exposition.know(finding)
    for finding in told:
        exposition.note(finding)
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "megatronapp_detections_total"
    )


def opened(identifier: str, **changes: object) -> Finding:
    own = {"id": identifier, "run": "a", "job": "team/a", "attempt": 1, "kind": Kind.SLOW_GPU, "cause": Cause.COMPUTE}
    return Finding.model_validate(own | {"ranks": (3,), "state": State.OPEN} | changes)


def test_a_finding_is_counted_once_however_often_it_is_told() -> None:
    assert detections_of(opened("x"), opened("x", page=True), opened("x", effect_ratio=1.2)) == 1
    assert detections_of(opened("x"), opened("y")) == 2


def test_what_opens_again_is_counted_again_and_what_was_counted_before_is_not() -> None:
    assert detections_of(opened("x"), opened("x", state=State.RESOLVED), opened("x")) == 2
    assert detections_of(opened("x"), known=[opened("x")]) == 0
