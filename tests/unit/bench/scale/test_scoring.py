"""Pages against truth."""

from typing import Any

import pytest

from bench.scale.faults import Fault, What
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.scoring import Outcome, Score
from megatronapp.core.findings import Cause, Finding, Kind, State

ONSET = 3


def heard(
    *findings: tuple[int, Finding], faults: tuple[Fault, ...] = (), steps: int = 30, counted_from: int = 0
) -> Outcome:
    job = Job(Spec(Layout(pp=1, dp=8), 10.0, faults=faults), 1)
    score = Score(job, counted_from)
    for _ in range(steps):
        step = job.step()
        score.pass_step(step)
        for at, finding in findings:
            if at == step.number:
                score.observe(step.number, int(step.ended_unix_ns.max()), finding)
    return score.close()


def finding(*ranks: int, **changes: Any) -> Finding:
    known = {"id": "a", "kind": Kind.SLOW_GPU, "cause": Cause.COMPUTE, "ranks": ranks, "page": True}
    return Finding(**(known | changes))


SLOW = Fault(What.COMPUTE, (5,), 1.1, ONSET)


def test_a_page_of_the_culprit_detects_its_fault() -> None:
    outcome = heard((ONSET + 2, finding(5)), faults=(SLOW,))

    (detection,) = outcome.detections
    assert (detection.found, detection.right_cause, detection.steps) == (True, True, 3)
    assert detection.seconds == pytest.approx(30, rel=0.2)
    assert (outcome.pages, outcome.false_pages, outcome.wrong_culprits, outcome.false_openings) == (1, 0, 0, 0)


def test_steps_of_an_intermittent_fault_are_those_in_which_it_is_there() -> None:
    outcome = heard((13, finding(5)), faults=(Fault(What.COMPUTE, (5,), 1.1, 1, every=4),))

    assert outcome.detections[0].steps == 4


def test_a_page_without_a_fault_is_false() -> None:
    outcome = heard((4, finding(5)))

    assert (outcome.false_pages, outcome.wrong_culprits, outcome.false_openings) == (1, 0, 1)


def test_a_page_before_the_fault_is_false() -> None:
    outcome = heard((ONSET - 1, finding(5)), faults=(SLOW,))

    assert (outcome.false_pages, outcome.detections[0].found) == (1, False)


def test_a_page_of_somebody_else_names_a_wrong_culprit() -> None:
    outcome = heard((6, finding(4)), faults=(SLOW,))

    assert (outcome.false_pages, outcome.wrong_culprits, outcome.detections[0].found) == (0, 1, False)


def test_a_page_that_names_an_innocent_beside_the_culprit_names_a_wrong_one() -> None:
    assert heard((6, finding(4, 5)), faults=(SLOW,)).wrong_culprits == 1


@pytest.mark.parametrize(
    ("kind", "cause", "wrong"),
    [
        (Kind.SLOW_GPU, Cause.THERMAL, 0),
        (Kind.UNKNOWN, Cause.UNKNOWN, 0),
        (Kind.SLOW_HOST, Cause.HOST_CPU, 1),
        (Kind.SLOW_LINK, Cause.NIC, 1),
    ],
)
def test_a_cause_is_wrong_where_it_is_neither_the_faults_nor_unknown(kind: Kind, cause: Cause, wrong: int) -> None:
    assert heard((6, finding(5, kind=kind, cause=cause)), faults=(SLOW,)).wrong_causes == wrong


def test_a_finding_that_is_told_again_is_one_page() -> None:
    outcome = heard((5, finding(5, page=False)), (6, finding(5)), (7, finding(5)), faults=(SLOW,))

    assert (outcome.pages, outcome.detections[0].steps) == (1, 4)


def test_a_page_that_goes_on_in_a_new_attempt_counts_there() -> None:
    again = finding(5, attempt=2)

    outcome = heard((5, finding(5)), (12, again), faults=(SLOW,), counted_from=10)

    assert (outcome.detections[0].found, outcome.detections[0].steps) == (True, 3)


def test_what_is_resolved_is_no_page() -> None:
    assert heard((5, finding(5, state=State.RESOLVED))).pages == 0


def test_advice_is_no_false_opening() -> None:
    outcome = heard((5, finding(5, kind=Kind.IMBALANCE, cause=Cause.STAGE, page=False)))

    assert (outcome.advice, outcome.false_openings) == (1, 0)


def test_two_faults_at_once_are_two_detections() -> None:
    other = Fault(What.DATA, (2,), 1.1, ONSET)
    host = finding(2, id="b", kind=Kind.SLOW_HOST, cause=Cause.DATA_LOADING)

    outcome = heard((5, finding(5)), (6, host), faults=(SLOW, other))

    assert [detection.found for detection in outcome.detections] == [True, True]
    assert outcome.wrong_causes == 0


def test_the_fabric_is_right_of_a_switch_alone() -> None:
    fabric = finding(kind=Kind.FABRIC_SLOW, cause=Cause.NIC)

    assert heard((5, fabric), faults=(Fault(What.SWITCH, (0, 1, 2, 3, 4), 5.0, ONSET),)).detections[0].right_cause
    assert heard((5, fabric), faults=(SLOW,)).wrong_culprits == 1


def test_gpu_days_are_ranks_times_the_time_of_their_steps() -> None:
    outcome = heard(steps=30)

    assert outcome.gpu_days == pytest.approx(8 * 30 * 10 / 86_400, rel=0.2)
    assert outcome.rank_steps == 240
