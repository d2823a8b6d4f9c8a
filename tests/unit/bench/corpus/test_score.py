"""What is counted of named and of broken ranks."""

from __future__ import annotations

from bench.corpus.case import Injected, Label, Source
from bench.corpus.ours import Verdict
from bench.corpus.score import Score, total
from megatronapp.core.findings import Cause, Kind
from megatronapp.core.scenario import FaultKind

SECOND = 10**9


def label(*ranks: int, kind: FaultKind = FaultKind.SLOW_COMPUTE) -> Label:
    faults = tuple(Injected(kind=kind, ranks=(rank,), from_step=5, begun_unix_ns=10 * SECOND) for rank in ranks)
    return Label(name="case", source=Source.SIMULATED, layout="DP8", world=8, faults=faults)


def page(rank: int, kind: Kind = Kind.SLOW_GPU, cause: Cause = Cause.COMPUTE, second: int = 15) -> Verdict:
    return Verdict(frozenset({rank}), kind, cause, second * SECOND)


def test_a_named_rank_is_right_false_or_missed() -> None:
    score = Score()

    score.count_pages(label(1, 2), [page(1), page(3)])

    assert (score.right, score.false, score.missed) == (1, 1, 1)
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)
    assert score.seconds == [5.0]


def test_the_cause_of_the_first_page_counts() -> None:
    score = Score()

    score.count_pages(label(1), [page(1, second=20), page(1, Kind.SLOW_HOST, Cause.HOST_CPU, second=12)])

    assert (score.wrong_causes, score.seconds) == (1, [2.0])


def test_unknown_is_no_wrong_cause() -> None:
    score = Score()

    score.count_pages(label(1), [page(1, cause=Cause.UNKNOWN)])

    assert score.wrong_causes == 0


def test_a_page_without_a_rank_counts_in_a_clean_job() -> None:
    score = Score()

    score.count_pages(label(), [Verdict(frozenset(), Kind.FABRIC_SLOW, Cause.UNKNOWN, SECOND)])
    score.count_pages(label(), [page(1)])

    assert (score.clean_paged, score.false) == (2, 1)


def test_nobody_broken_and_nobody_named_is_whole() -> None:
    score = Score()

    score.count_pages(label(), [])

    assert (score.precision, score.recall, score.f1) == (1.0, 1.0, 1.0)


def test_scores_add_up() -> None:
    one, other = Score(), Score()
    one.count_pages(label(1), [page(1)])
    other.count_pages(label(1), [])

    whole = total([one, other])

    assert (whole.cases, whole.right, whole.missed, whole.seconds) == (2, 1, 1, [5.0])
