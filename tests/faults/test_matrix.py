"""The fault matrix on real ranks: whom the platform names, for what, and how fast."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from anyio.from_thread import start_blocking_portal

from bench.scale import intervals
from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.core.scenario import Fault
from tests.faults.cases import FAULTY, Case, expected
from tests.faults.conftest import share_and_seed
from tests.faults.harness import Outcome, Stage, clean_steps, forkserver

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

FLOOR = 0.97
"""Of precision and recall, and of right causes."""


@pytest.fixture(scope="module")
def stage(pytestconfig: pytest.Config) -> Iterator[Stage]:
    with start_blocking_portal() as portal:
        yield Stage(portal, forkserver(), briefly=share_and_seed(pytestconfig)[0] < 1)


@pytest.fixture(scope="module")
def outcomes() -> list[Future[Outcome]]:
    """What the cases before have shown, or will."""
    return []


def test_a_clean_run_pages_nobody(clean_case: Case, stage: Stage) -> None:
    outcome = stage.play(clean_case).result()

    assert [page.summary for page in outcome.pages] == []
    assert outcome.last_step >= clean_steps(briefly=stage.briefly)


def test_a_fault_is_played(faulty_case: Case, stage: Stage, outcomes: list[Future[Outcome]]) -> None:
    """Right and wrong verdicts are counted over all cases below, where those that stand still are over, too."""
    outcomes.append(stage.play(faulty_case))


def test_every_run_has_reached_its_fault(outcomes: list[Future[Outcome]]) -> None:
    played = [future.result() for future in outcomes]

    assert [each.case.name for each in played if each.last_step < each.case.scenario.faults[0].from_step - 1] == []


def test_precision_and_recall_over_the_matrix(
    outcomes: list[Future[Outcome]], capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """A part of the matrix can't prove the floor: it fails where it refutes it. Whom one case accuses wrongly is no
    chance of its own each: of a part, cases are counted, not ranks."""
    whole = share_and_seed(pytestconfig)[0] >= 1
    played = [outcome.result() for outcome in outcomes]
    shares = shares_of(played)
    del shares["cases that wake for their faults alone" if whole else "precision"]
    with capsys.disabled():
        report(played)
        for what, (hits, of) in shares.items():
            print(f"{what}: {intervals.share_text(hits, of)}; {least_that_passes(of, whole=whole)} pass")

    for what, (hits, of) in shares.items():
        assert hits >= least_that_passes(of, whole=whole), what


def shares_of(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """Who is paged counts in every case: an innocent is one beside a fault of 10 %, too, which need not be found."""
    judged = [outcome for outcome in outcomes if outcome.case.must_be_found]
    return {
        "precision": (
            sum(len(set(o.paged) & set(o.injected)) for o in outcomes),
            sum(len(o.paged) + len(o.paged_early) for o in outcomes),
        ),
        "cases that wake for their faults alone": (
            sum(set(o.paged) <= set(o.injected) and not o.paged_early for o in outcomes),
            len(outcomes),
        ),
        "recall from 20 % up": (
            sum(len(set(o.paged) & set(o.injected)) for o in judged),
            sum(len(o.injected) for o in judged),
        ),
        "right kind and cause from 20 % up": (sum(map(named_rightly, judged)), len(judged)),
    }


def least_that_passes(of: int, *, whole: bool) -> int:
    """Of a part: the least hits that are likely enough (2.5 %) where the floor holds."""
    return next(
        hits
        for hits in range(of + 1)
        if (hits / max(1, of) if whole else intervals.share(hits, of)[1]) >= FLOOR or hits == of
    )


def test_an_innocent_beside_a_fault_that_need_not_be_found_counts() -> None:
    small = next(case for case in FAULTY if not case.must_be_found)
    page = Finding(id="a", kind=Kind.SLOW_GPU, cause=Cause.COMPUTE, ranks=(2,), page=True)
    outcome = Outcome(small, injected=[0], pages=[page], early=[], steps=None, seconds=None, last_step=90)

    shares = shares_of([outcome])

    assert shares["precision"] == shares["cases that wake for their faults alone"] == (0, 1)
    assert shares["recall from 20 % up"] == (0, 0)


def test_a_part_of_the_matrix_fails_where_it_refutes_the_floor() -> None:
    assert [least_that_passes(20, whole=whole) for whole in (False, True)] == [18, 20]
    assert [least_that_passes(100, whole=whole) for whole in (False, True)] == [93, 97]


def named_rightly(outcome: Outcome) -> bool:
    """Every fault has a page with its rank, the right kind and an allowed cause."""

    def named(fault: Fault) -> bool:
        pages = [page for page in outcome.pages if set(page.ranks) & set(fault.ranks)]
        right = expected(outcome.case.layout, fault.kind)
        return any(page.kind == kind and page.cause in causes for page in pages for kind, causes in right)

    return all(map(named, outcome.case.scenario.faults))


def report(outcomes: list[Outcome]) -> None:
    print(f"\n{'case':64s} {'injected':>9s} {'paged':>9s} {'steps':>6s} {'seconds':>8s}  named")
    for o in outcomes:
        verdict = (
            "yes" if named_rightly(o) else ", ".join(sorted({f"{p.kind}/{p.cause}" for p in o.pages})) or "nothing"
        )
        print(f"{o.case.name:64s} {o.injected!s:>9s} {o.paged!s:>9s} {o.steps!s:>6s} {o.seconds!s:>8s}  {verdict}")
    for o in outcomes:
        for page in (*o.early, *o.pages):
            if page in o.early or not set(page.ranks) <= set(o.injected):
                print(f"wrong: {o.case.name}: step {page.opened_step}, {page.kind}/{page.cause}: {page.summary}")
    if seconds := sorted(o.seconds for o in outcomes if o.seconds is not None):
        print(f"time to finding: median {statistics.median(seconds):.1f} s, longest {seconds[-1]:.1f} s")
