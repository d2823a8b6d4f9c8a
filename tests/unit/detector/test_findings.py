"""What becomes of suspicions over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
import pytest

from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State
from megatronapp.detector.findings import Ledger, Moment
from megatronapp.detector.rules.base import PAGE_STEPS, Suspicion
from megatronapp.detector.steps import RankTable
from tests.support.suspected import SLOW_GPU

SINCE = SLOW_GPU.since_step or 0
HANG = replace(SLOW_GPU, kind=Kind.HANG, cause=Cause.COMPUTE, summary="Nothing moves.", effect_ratio=1.0)
SLOW_HOST = replace(SLOW_GPU, kind=Kind.SLOW_HOST, cause=Cause.UNKNOWN, summary="The host of rank 3 is slow.")


def test_what_fades_opens_nothing() -> None:
    ledger = Ledger("run", "team/job", 1)

    told = _told(ledger, [replace(SLOW_GPU, fading=True)], step=20)

    assert told == []
    assert ledger.open == []


def test_what_fades_does_not_rename_what_was_found() -> None:
    ledger = Ledger("run", "team/job", 1)
    _told(ledger, [SLOW_GPU], step=20)

    told = _told(ledger, [replace(SLOW_HOST, fading=True)], step=21)

    (finding,) = ledger.open
    assert told == []
    assert (finding.kind, finding.cause) == (Kind.SLOW_GPU, Cause.INTERFERENCE)


def test_what_fades_is_open_until_it_is_no_longer_suspected() -> None:
    ledger = Ledger("run", "team/job", 1)
    _told(ledger, [SLOW_GPU], step=20)
    _told(ledger, [replace(SLOW_GPU, fading=True)], step=21)

    (over,) = _told(ledger, [], step=22)

    assert (over.state, over.resolved_step) == (State.RESOLVED, 22)


def test_what_fades_does_not_shorten_the_time_that_an_adopted_finding_has() -> None:
    (known,) = _told(Ledger("run", "team/job", 1), [SLOW_GPU], step=20)
    ledger = Ledger("run", "team/job", 1)
    ledger.adopt("steps", known, held_updates=5, held_until_unix_ns=0)
    _told(ledger, [replace(SLOW_HOST, fading=True)], step=21)

    told = _told(ledger, [], step=22)

    assert told == []
    assert [finding.id for finding in ledger.open] == [known.id]


def test_evidence_shows_the_lead_and_the_onset_whole_however_long_the_finding_lasts() -> None:
    """The newest series has 64 steps and the finding is told again every ten: 3,000 steps later the jump is a jump."""
    ledger = Ledger("run", "team/job", 1)
    for step in range(70, 3_070):
        _told(
            ledger, [replace(SLOW_GPU, since_step=60, evidence=(_ratios(range(step - 63, step + 1), since=60),))], step
        )

    (evidence,) = ledger.open[0].evidence

    early = [step for step in evidence.steps if step < 60 + 32]
    between = evidence.steps[len(early) : -64]
    gaps = {after - before for before, after in pairwise(between)}
    assert early == list(range(60 - 16, 60 + 32))
    assert [value for step, value in zip(evidence.steps, evidence.values, strict=True) if 55 <= step < 65] == [
        *[1.0] * 5,
        *[1.5] * 5,
    ]
    assert 32 <= len(between) <= 64
    assert len(gaps) == 1


def test_a_finding_whose_cause_becomes_clearer_is_renamed() -> None:
    ledger = Ledger("run", "team/job", 1)
    _told(ledger, [SLOW_GPU], step=20)

    (renamed,) = _told(ledger, [SLOW_HOST], step=21)

    assert renamed.kind == Kind.SLOW_HOST


@pytest.mark.parametrize(
    "burst",
    [
        pytest.param({"slow_steps": PAGE_STEPS - 1}, id="of too few steps"),
        pytest.param({"since_step": 20, "page_seconds": 2.0}, id="too short"),
        pytest.param({"pages": False}, id="that wakes nobody"),
    ],
)
def test_a_page_is_not_renamed_by_what_outweighs_it_for_a_moment(burst: dict[str, Any]) -> None:
    ledger = Ledger("run", "team/job", 1)
    (page,) = _told(ledger, [SLOW_GPU], step=20)

    told = _told(ledger, [replace(SLOW_HOST, outweighs=Kind.SLOW_GPU, **burst)], step=21)

    assert page.page
    assert told == []
    assert ledger.open == [page]


def test_a_page_is_renamed_by_what_outweighs_it_for_long() -> None:
    ledger = Ledger("run", "team/job", 1)
    (page,) = _told(ledger, [SLOW_GPU], step=20)

    (renamed,) = _told(ledger, [replace(SLOW_HOST, outweighs=Kind.SLOW_GPU, slow_steps=PAGE_STEPS)], step=21)

    assert (renamed.id, renamed.kind, renamed.page) == (page.id, Kind.SLOW_HOST, True)


def test_a_page_that_nothing_bears_any_more_is_renamed_at_once() -> None:
    ledger = Ledger("run", "team/job", 1)
    (page,) = _told(ledger, [SLOW_GPU], step=20)

    (renamed,) = _told(ledger, [replace(SLOW_HOST, slow_steps=1)], step=21)

    assert (renamed.id, renamed.kind) == (page.id, Kind.SLOW_HOST)


def test_a_hang_whose_cause_becomes_clearer_is_renamed_and_pages_once() -> None:
    ledger = Ledger("run", "team/job", 1)
    (told,) = _told(ledger, [HANG], step=20)

    (renamed,) = _told(ledger, [replace(HANG, cause=Cause.HOST_CPU)], step=20)

    assert (renamed.id, renamed.cause, renamed.state) == (told.id, Cause.HOST_CPU, State.OPEN)
    assert [finding.id for finding in ledger.open] == [told.id]


@pytest.mark.parametrize(
    ("suspicion", "page"),
    [
        (replace(SLOW_GPU, slow_steps=PAGE_STEPS), True),
        (replace(SLOW_GPU, slow_steps=PAGE_STEPS - 1), False),
        (replace(SLOW_GPU, page_seconds=10.0), True),
        (replace(SLOW_GPU, page_seconds=11.0), False),
        (replace(SLOW_GPU, cost_ratio=1.005), False),
        (replace(SLOW_GPU, smallest=log(1.4)), True),
        (replace(SLOW_GPU, smallest=log(1.6)), False),
        (replace(SLOW_GPU, pages=False), False),
    ],
    ids=["steps", "too few", "seconds", "too short", "costs nothing", "slow", "hardly slow", "advice"],
)
def test_a_page_is_of_what_has_lasted_in_steps_and_in_time_and_matters(suspicion: Suspicion, page: bool) -> None:
    """However long steps are: two of a minute each are no three."""
    (finding,) = _told(Ledger("run", "team/job", 1), [suspicion], step=SINCE + 10)

    assert finding.page is page


@pytest.mark.parametrize(
    ("world", "cost", "page"),
    [
        (8, 0.011, True),
        (8, 0.009, False),
        (1024, 0.009, True),
        (1024, 0.007, False),
        (4096, 0.002, True),
        (4096, 0.0019, False),
    ],
)
def test_a_page_is_of_what_costs_a_hundredth_or_as_much_as_a_node_does(world: int, cost: float, page: bool) -> None:
    suspicion = replace(SLOW_GPU, cost_ratio=1 + cost)

    (finding,) = _told(Ledger("run", "team/job", 1), [suspicion], SINCE + 10, _ranks(world))

    assert finding.page is page


def _told(ledger: Ledger, suspicions: Sequence[Suspicion], step: int, ranks: RankTable | None = None) -> list[Finding]:
    moment = Moment(step, step * 10**9, lambda at: at * 10**9)
    return ledger.update("steps", suspicions, ranks, lambda suspicion: suspicion.cost_ratio, moment)


def _ranks(world: int) -> RankTable:
    """Replicas of one rank each."""
    rank, zeros, nothing = np.arange(world), np.zeros(world, int), np.full(world, "")
    return RankTable(rank, zeros, rank, zeros, zeros, zeros, nothing, nothing, nothing, np.zeros(world, bool))


def _ratios(steps: range, since: int) -> Evidence:
    values = tuple(1.5 if step >= since else 1.0 for step in steps)
    return Evidence(signal="compute_effect", text="", steps=tuple(steps), values=values)
