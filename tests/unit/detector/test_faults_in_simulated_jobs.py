"""Precision and recall over simulated jobs: layouts × faults × devices, several faults, and what is no fault."""

from __future__ import annotations

import pytest

from megatronapp.core.findings import Cause, Kind, State
from megatronapp.detector.engine import Engines
from tests.support.detecting import detect
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

LAYOUTS = {
    "pp2-dp2": Layout(),
    "pp4-dp1": Layout(pp=4, dp=1),
    "pp2-dp2-tp2": Layout(pp=2, dp=2, tp=2),
    "pp1-dp4": Layout(pp=1, dp=4),
    "pp2-dp1-vpp2": Layout(pp=2, dp=1, vpp=2),
}
ONSET = 36
EXPECTED = {
    "compute": (Kind.SLOW_GPU, {Cause.COMPUTE}),
    "host": (Kind.SLOW_HOST, {Cause.HOST_CPU}),
    "data": (Kind.SLOW_HOST, {Cause.DATA_LOADING}),
    "gc": (Kind.SLOW_HOST, {Cause.GARBAGE_COLLECTION}),
    "link": (Kind.SLOW_LINK, {Cause.NIC, Cause.NVLINK, Cause.UNKNOWN}),
}
EACH_KIND_IN_EACH_LAYOUT = [
    pytest.param(kind, layout, id=f"{kind}-{name}", marks=[pytest.mark.scale] if (row + column) % len(LAYOUTS) else [])
    for row, kind in enumerate(EXPECTED)
    for column, (name, layout) in enumerate(LAYOUTS.items())
]
"""Each kind once, and each layout once, with `make test`; the others with `make scale`."""
SIZES = {"compute": (1.05, 1.3), "host": (0.05, 0.2), "data": (0.05, 0.2), "gc": (0.05, 0.2), "link": (0.02, 0.05)}


@pytest.mark.parametrize(("kind", "layout"), EACH_KIND_IN_EACH_LAYOUT)
def test_a_fault_on_gpus_is_named_with_its_rank_within_three_steps(kind: str, layout: Layout) -> None:
    job = Job(layout, GPU, (Fault(kind, (1,), ONSET, SIZES[kind][0]),), seed=1)

    verdicts = detect(job, ONSET + 6)

    (finding,) = verdicts.paged()
    opened, _ = verdicts.opened()[finding.id]
    assert (finding.kind, finding.ranks) == (EXPECTED[kind][0], (1,))
    assert finding.cause in EXPECTED[kind][1]
    assert opened <= ONSET + 2
    assert finding.since_step is not None
    assert abs(finding.since_step - ONSET) <= 1


@pytest.mark.parametrize(("kind", "layout"), EACH_KIND_IN_EACH_LAYOUT)
def test_a_fault_on_noisy_cpus_is_named_with_its_rank(kind: str, layout: Layout) -> None:
    job = Job(layout, CPU, (Fault(kind, (1,), ONSET, SIZES[kind][1]),), seed=1, on_cpu=True)

    verdicts = detect(job, ONSET + 30)

    (finding,) = verdicts.paged()
    assert (finding.kind, finding.ranks) == (EXPECTED[kind][0], (1,))
    assert finding.cause in EXPECTED[kind][1]


@pytest.mark.parametrize("on_cpu", [False, True])
def test_two_slow_ranks_of_one_job_are_two_findings(on_cpu: bool) -> None:
    faults = (Fault("compute", (1,), ONSET, 1.3), Fault("compute", (2,), ONSET + 4, 1.3))
    job = Job(Layout(pp=2, dp=4), CPU if on_cpu else GPU, faults, seed=2, on_cpu=on_cpu)

    verdicts = detect(job, ONSET + 24)

    assert verdicts.paged_ranks() == {1, 2}


def test_faults_of_different_kinds_at_once_are_told_apart() -> None:
    faults = (Fault("compute", (1,), ONSET, 1.1), Fault("data", (2,), ONSET, 0.1))
    job = Job(Layout(pp=2, dp=2), GPU, faults, seed=3)

    verdicts = detect(job, ONSET + 8)

    assert {(f.kind, f.ranks) for f in verdicts.paged()} == {(Kind.SLOW_GPU, (1,)), (Kind.SLOW_HOST, (2,))}


def test_all_peers_of_a_stage_slowing_together_are_slow_not_imbalanced() -> None:
    job = Job(Layout(pp=4, dp=2), GPU, (Fault("compute", (2, 3), ONSET, 1.15),), seed=4)

    verdicts = detect(job, ONSET + 8)

    assert verdicts.paged_ranks() == {2, 3}
    assert {f.kind for f in verdicts.paged()} == {Kind.SLOW_GPU}


def test_a_fault_from_the_first_step_on_is_seen_beside_peers() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (5,), 1, 1.2),), seed=5)

    verdicts = detect(job, 15)

    assert verdicts.paged_ranks() == {5}


def test_two_percent_are_found_within_five_steps() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (3,), ONSET, 1.025),), seed=6)

    verdicts = detect(job, ONSET + 5)

    assert {rank for _, f in verdicts.opened().values() for rank in f.ranks} == {3}


def test_a_fault_that_ends_is_resolved_and_a_new_one_has_a_new_id() -> None:
    faults = (Fault("compute", (1,), ONSET, 1.2, to_step=ONSET + 9), Fault("compute", (1,), ONSET + 40, 1.2))
    job = Job(Layout(), GPU, faults, seed=7)

    verdicts = detect(job, ONSET + 45)

    first, second = verdicts.opened()
    states = [finding.state for _, finding in verdicts.said if finding.id == first]
    assert states[-1] is State.RESOLVED
    assert [finding.id for finding in verdicts.open()] == [second]


def test_a_page_of_a_slow_rank_is_not_renamed_by_a_moment_of_its_host() -> None:
    """Which costs more for as long as it lasts."""
    faults = (Fault("compute", (1,), ONSET, 1.5), Fault("host", (1,), ONSET + 40, 1.0, to_step=ONSET + 44))

    verdicts = detect(Job(Layout(pp=1, dp=4), CPU, faults, seed=1, on_cpu=True), ONSET + 60)

    assert {(finding.kind, finding.ranks) for _, finding in verdicts.said if finding.page} == {(Kind.SLOW_GPU, (1,))}


def test_a_fault_that_outlasts_its_job_was_open_at_its_end() -> None:
    faults = (Fault("compute", (1,), ONSET, 1.2, to_step=ONSET + 9), Fault("compute", (2,), ONSET + 40, 1.2))
    job = Job(Layout(), GPU, faults, seed=7)
    engines, last = Engines(), {}

    for message in [*job.hellos(), *(m for step in range(1, ONSET + 46) for m in job.step(step))]:
        last |= {finding.id: finding for finding in engines.feed(message)}
    last |= {finding.id: finding for finding in engines.forget(job.run, 1)}

    assert {finding.ranks: finding.open_at_end for finding in last.values()} == {(1,): False, (2,): True}


def test_the_end_of_a_fault_that_was_there_from_the_start_is_no_new_one() -> None:
    job = Job(Layout(), GPU, (Fault("compute", (1,), 1, 1.2, to_step=60),), seed=1)

    verdicts = detect(job, 100)

    assert verdicts.paged_ranks() == {1}
    assert verdicts.open() == []


def test_memory_alone_slow_is_told_from_a_slow_processor() -> None:
    job = Job(Layout(pp=1, dp=4), GPU, (Fault("optimizer", (2,), ONSET, 1.5),), seed=8)

    verdicts = detect(job, ONSET + 6)

    assert {(f.kind, f.cause, f.ranks) for f in verdicts.paged()} == {(Kind.SLOW_GPU, Cause.MEMORY_BOUND, (2,))}


def test_unequal_stages_are_advice_and_page_nobody() -> None:
    job = Job(Layout(pp=4, dp=2), GPU, last_stage=1.6, seed=9)

    verdicts = detect(job, 40)

    (advice,) = verdicts.open()
    assert (advice.kind, advice.cause, advice.ranks) == (Kind.IMBALANCE, Cause.STAGE, (6, 7))
    assert verdicts.paged() == []


def test_unequal_sequences_are_advice_and_page_nobody() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, sequence_spread=0.4, seed=10)

    verdicts = detect(job, 60)

    assert (Kind.IMBALANCE, Cause.SEQUENCE_LENGTH) in {(f.kind, f.cause) for f in verdicts.open()}
    assert verdicts.paged() == []


def test_a_slow_gpu_is_found_under_unequal_sequences() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (6,), 50, 1.05),), sequence_spread=0.4, seed=11)

    verdicts = detect(job, 60)

    assert verdicts.paged_ranks() == {6}


def test_the_cost_is_what_the_replayed_step_says() -> None:
    job = Job(Layout(pp=1, dp=4), GPU, (Fault("compute", (1,), ONSET, 1.2),), seed=12)

    (finding,) = detect(job, ONSET + 8).paged()

    assert finding.effect_ratio == pytest.approx(1.2, abs=0.02)
    assert finding.cost_ratio == pytest.approx(1.18, abs=0.04)


@pytest.mark.parametrize(("late_seconds", "blamed"), [(0.3, {0}), (0.0, {2})])
def test_a_cpu_rank_whose_messages_come_late_is_not_blamed_for_its_cold_processor(
    late_seconds: float, blamed: set[int]
) -> None:
    faults = (Fault("link", (0,), ONSET, late_seconds), Fault("compute", (2,), ONSET, 1.35))

    verdicts = detect(Job(Layout(pp=2, dp=2), CPU, faults, seed=1, on_cpu=True), ONSET + 40)

    assert verdicts.paged_ranks() == blamed


def test_a_cpu_rank_that_is_slower_than_idling_makes_it_is_named_beside_a_late_host_of_its_replica() -> None:
    faults = (Fault("host", (1,), ONSET, 0.6), Fault("compute", (3,), ONSET, 1.5))

    verdicts = detect(Job(Layout(pp=2, dp=2), CPU, faults, seed=1, on_cpu=True), ONSET + 40)

    assert verdicts.paged_ranks() == {1, 3}


@pytest.mark.parametrize(
    ("other", "seconds", "paged"),
    [
        pytest.param(3, 0.2, {1}, id="half as late in the same replica"),
        pytest.param(3, 0.4, {1, 3}, id="as late in the same replica"),
        pytest.param(2, 0.2, {1, 2}, id="half as late in another replica"),
    ],
)
def test_a_cpu_rank_whose_messages_wait_for_a_later_rank_of_its_replica_is_not_paged(
    other: int, seconds: float, paged: set[int]
) -> None:
    faults = (Fault("link", (1,), ONSET, 0.45), Fault("link", (other,), ONSET, seconds))

    verdicts = detect(Job(Layout(pp=2, dp=2), CPU, faults, seed=1, on_cpu=True), ONSET + 40)

    assert verdicts.paged_ranks() == paged


@pytest.mark.parametrize(("on_cpu", "paged"), [(True, {2}), (False, {0, 2})])
def test_a_cpu_rank_is_not_paged_in_the_shadow_of_a_much_slower_one(on_cpu: bool, paged: set[int]) -> None:
    faults = (Fault("compute", (2,), ONSET, 1.6), Fault("compute", (0,), ONSET, 1.2))
    job = Job(Layout(pp=2, dp=2), CPU if on_cpu else GPU, faults, seed=1, on_cpu=on_cpu)

    verdicts = detect(job, ONSET + 40)

    assert verdicts.paged_ranks() == paged
