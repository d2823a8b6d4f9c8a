"""The floor under the verdicts: what the detector makes of simulated jobs never gets worse than this.

The short form of `python -m bench.scale`, on seeds for tuning; docs/proving-ground.md says what the numbers mean. Where
a rule has become better its line here is raised. What is known to fail has no line: `python -m bench.scale` shows it.
"""

from __future__ import annotations

import pytest

from bench.scale import hangs, report
from bench.scale.report import Line
from bench.scale.scenarios import INTERLEAVED, LARGE, Trial
from bench.scale.seeds import seeds
from bench.scale.suites import size_of
from bench.scale.trials import run

pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]

RANKS = 64
JOBS = 20
"""Of each slow GPU; of other faults FEWER."""
FEWER = 4
HEALTHY_STEPS = 300
LARGE_RANKS, LARGE_STEPS = 1024, 120


def judged(
    suite: str,
    scenario: str,
    jobs: int,
    *,
    size: float = 1.05,
    steps: int = 0,
    model: str = "quiet",
    layouts: str = LARGE,
    ranks: int = RANKS,
) -> Line:
    trials = [
        Trial(suite, scenario, ranks, (4.0, 15.0)[seed % 2], seed, steps, model, size, layouts=layouts)
        for seed in seeds(jobs)
    ]
    (line,) = report.lines((trial, run(trial)) for trial in trials)
    assert line.errors == 0, line.strays
    return line


@pytest.mark.parametrize(("percent", "recall", "steps"), [(3, 0.95, 10), (5, 1.0, 4), (10, 1.0, 3)])
def test_a_slow_gpu_is_paged_soon(percent: float, recall: float, steps: int) -> None:
    line = judged("recall", "slow", JOBS, size=1 + percent / 100)

    assert line.found >= recall * JOBS, line.strays
    assert line.to_the_page("steps")[0] <= steps
    assert line.right_causes == line.found
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


@pytest.mark.parametrize(("percent", "recall", "steps"), [(3, 0.75, 30), (5, 1.0, 12), (10, 1.0, 9)])
@pytest.mark.parametrize("scenario", ["first-step", "restart"])
def test_a_gpu_that_is_slow_from_the_first_step_or_across_a_restart_is_paged(
    scenario: str, percent: float, recall: float, steps: int
) -> None:
    line = judged("recall", scenario, FEWER, size=1 + percent / 100)

    assert line.found >= recall * FEWER, line.strays
    assert line.to_the_page("steps")[0] <= steps
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


@pytest.mark.parametrize(
    "model",
    [
        "quiet",
        "outliers",
        "tails",
        "drift",
        "spread",
        "bursts",
        "restarts",
        "sequences",
        "sequences-unreported",
        "buckets",
        "buckets-unreported",
        "experts",
        "last-stage",
        "garbage",
        "checkpoints",
        "recorded",
    ],
)
def test_nobody_is_paged_of_a_healthy_job_and_hardly_anything_is_told(model: str) -> None:
    line = judged("healthy", model, 1, steps=HEALTHY_STEPS, model=model)

    assert line.false_pages == 0, line.strays
    assert line.false_openings <= 1, line.strays


@pytest.mark.parametrize("model", ["drift", "bursts", "sequences-unreported"])
def test_nobody_is_paged_of_a_large_healthy_job(model: str) -> None:
    line = judged("healthy", model, 1, steps=LARGE_STEPS, model=model, ranks=LARGE_RANKS)

    assert line.false_pages == 0, line.strays
    assert line.false_openings <= 1, line.strays


@pytest.mark.parametrize("scenario", ["slow", "link", "two"])
def test_a_fault_of_a_large_job_is_paged_with_its_ranks_and_its_cause(scenario: str) -> None:
    line = judged("faults", scenario, 1, size=size_of(scenario), ranks=LARGE_RANKS)

    assert line.found == line.right_causes == len(line.detections), line.strays
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


@pytest.mark.parametrize(
    "scenario",
    [
        "two",
        "two-kinds",
        "node",
        "creeping",
        "intermittent",
        "host",
        "data",
        "garbage-collection",
        "memory",
        "link",
        "switch",
    ],
)
def test_a_fault_is_paged_with_its_ranks_and_its_cause(scenario: str) -> None:
    line = judged("faults", scenario, FEWER, size=size_of(scenario))

    assert line.found == len(line.detections), line.strays
    assert line.right_causes == line.found
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


@pytest.mark.parametrize("scenario", ["link", "switch", "slow"])
def test_a_fault_of_an_interleaved_pipeline_is_paged_with_its_ranks_and_its_cause(scenario: str) -> None:
    line = judged("faults", scenario, 2 * FEWER, size=size_of(scenario), layouts=INTERLEAVED)

    assert line.found == len(line.detections), line.strays
    assert line.right_causes == line.found
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


def test_nobody_is_paged_of_a_healthy_interleaved_pipeline() -> None:
    line = judged("healthy", "quiet", 2, steps=HEALTHY_STEPS, layouts=INTERLEAVED)

    assert (line.false_pages, line.false_openings) == (0, 0), line.strays


@pytest.mark.parametrize("scenario", ["messages-lost", "messages-late", "messages-doubled", "silent"])
def test_messages_in_trouble_do_not_hide_a_slow_gpu(scenario: str) -> None:
    line = judged("faults", scenario, FEWER, size=1.10)

    assert line.found == FEWER, line.strays
    assert (line.wrong_culprits, line.false_pages) == (0, 0), line.strays


def test_a_rank_that_stops_is_named() -> None:
    stalls = [hangs.stop(RANKS, seed) for seed in seeds(FEWER)]

    assert all(stall.right_rank and stall.in_time for stall in stalls), stalls
