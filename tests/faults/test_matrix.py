"""The fault matrix on real ranks: whom the platform names, for what, and how fast."""

from __future__ import annotations

import asyncio
import statistics
from multiprocessing.context import ForkServerContext

import pytest

from megatronapp.core.scenario import Fault
from tests.faults.cases import CLEAN, EXPECTED, FAULTY, Case
from tests.faults.harness import CLEAN_STEPS, Outcome, forkserver, play

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

MAX_FALSE_RUNS = 1
"""The goal is none. Four ranks on two cores that other work shares have shown one in twenty."""
MIN_PRECISION = 0.9
MIN_RECALL = 0.9


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    return forkserver()


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """What the cases before have shown."""
    return []


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_a_clean_run_is_played(case: Case, context: ForkServerContext, outcomes: list[Outcome]) -> None:
    outcome = asyncio.run(play(case, context))
    outcomes.append(outcome)

    assert outcome.pages or outcome.last_step >= CLEAN_STEPS


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_a_fault_is_played(case: Case, context: ForkServerContext, outcomes: list[Outcome]) -> None:
    """Right and wrong verdicts are counted over the whole matrix below."""
    outcome = asyncio.run(play(case, context))
    outcomes.append(outcome)

    assert outcome.last_step >= case.scenario.faults[0].from_step - 1, "the run did not reach the fault"


def test_clean_runs_page_nobody(outcomes: list[Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    clean = [o for o in outcomes if o.case.clean]
    paged = [o for o in clean if o.pages]
    with capsys.disabled():
        print(f"\n{len(paged)} of {len(clean)} clean runs paged somebody")
        print("\n".join(f"{o.case.name}: {page.summary}" for o in paged for page in o.pages))

    assert len(paged) <= MAX_FALSE_RUNS


def test_precision_and_recall_over_the_matrix(outcomes: list[Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [o for o in outcomes if not o.case.clean]
    right = sum(len(set(o.found) & set(o.injected)) for o in outcomes)
    precision = right / max(1, sum(len(o.found) for o in outcomes))
    recall = right / max(1, sum(len(o.injected) for o in outcomes))
    causes = statistics.mean(named_rightly(o) for o in outcomes)
    with capsys.disabled():
        report(outcomes)
        seconds = sorted(o.seconds for o in outcomes if o.seconds is not None)
        print(f"precision {precision:.3f}, recall {recall:.3f}, right kind and cause {causes:.3f}")
        print(f"time to finding: median {statistics.median(seconds):.1f} s, longest {seconds[-1]:.1f} s")

    assert precision >= MIN_PRECISION
    assert recall >= MIN_RECALL
    assert causes >= MIN_RECALL


def named_rightly(outcome: Outcome) -> bool:
    """Every fault has a page with its rank, the right kind and an allowed cause."""

    def named(fault: Fault) -> bool:
        kind, causes = EXPECTED[fault.kind]
        return any(p.kind == kind and p.cause in causes and set(p.ranks) & set(fault.ranks) for p in outcome.pages)

    return all(map(named, outcome.case.scenario.faults))


def report(outcomes: list[Outcome]) -> None:
    lines = ["", f"{'case':58s} {'injected':>9s} {'found':>9s} {'steps':>6s} {'seconds':>8s}  named"]
    for o in outcomes:
        verdict = (
            "yes" if named_rightly(o) else ", ".join(sorted({f"{p.kind}/{p.cause}" for p in o.pages})) or "nothing"
        )
        row = f"{o.case.name:58s} {o.injected!s:>9s} {o.found!s:>9s} {o.steps!s:>6s} {o.seconds!s:>8s}  {verdict}"
        lines.append(row)
    print("\n".join(lines))
