"""Where the time of a run went: all of it, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.gateway.run_models import Part, TimeSpent
from megatronapp.gateway.time_spent import time_spent
from megatronapp.v1 import trace_pb2

BEGIN = 1_790_000_000.0
NS = 1_000_000_000


def attempt(
    number: int,
    begin: float,
    end: float,
    steps: list[tuple[float, float]],
    *,
    first_step: int = 1,
    ended_well: bool = True,
    live: bool = False,
    **columns: list[float],
) -> trace_pb2.AttemptHistory:
    """`steps`: start and duration in seconds after BEGIN, as `begin` and `end` are."""
    numbers = np.arange(first_step, first_step + len(steps), dtype="<u8").tobytes()
    starts = np.array([start for start, _ in steps], np.float64)
    durations = np.array([duration for _, duration in steps], np.float64)

    def ns(values: np.ndarray) -> bytes:
        return (np.round((values + BEGIN) * 1e3) * 1e6).astype("<i8").tobytes()

    told = {
        name: np.array(columns.get(name, [0.0] * len(steps))) * NS
        for name in ("stage_wait", "checkpoint", "evaluation")
    }
    return trace_pb2.AttemptHistory(
        attempt=number,
        first_seen_unix_ns=int((BEGIN + begin) * NS),
        last_seen_unix_ns=int((BEGIN + end) * NS),
        ended_well=ended_well,
        live=live,
        count=len(steps),
        bin_first_step=numbers,
        bin_last_step=numbers,
        start_ns=ns(starts),
        end_ns=ns(starts + durations),
        duration_ns=(durations * NS).astype("<f8").tobytes(),
        phases=np.zeros(len(steps), "<u4").tobytes(),
        **{f"{name}_ns": column.astype("<f8").tobytes() for name, column in told.items()},
    )


def finding(
    kind: Kind, since: float, until: float | None = None, *, cost: float = 1.25, number: int = 1, of_attempt: int = 1
) -> Finding:
    return Finding(
        id=f"finding-{number}",
        kind=kind,
        cause=Cause.UNKNOWN,
        attempt=of_attempt,
        cost_ratio=float("inf") if kind is Kind.HANG else cost,
        page=True,
        state=State.OPEN if until is None else State.RESOLVED,
        since_unix_ns=int((BEGIN + since) * NS),
        resolved_unix_ns=0 if until is None else int((BEGIN + until) * NS),
    )


def seconds(spent: TimeSpent) -> dict[Part, float]:
    return {each.part: round(each.seconds, 3) for each in spent.parts if round(each.seconds, 3)}


def test_a_start_steps_a_checkpoint_and_a_tail() -> None:
    run = attempt(1, 0, 30, [(4, 2), (6, 2), (11, 2), (13, 2)], checkpoint=[0, 0, 2.5, 0], evaluation=[0, 0, 0, 0])

    spent = time_spent([run], [], BEGIN + 1000)

    assert seconds(spent) == {Part.START: 6, Part.COMPUTE: 6, Part.CHECKPOINT: 2.5, Part.OTHER: 15.5}
    assert spent.wall_seconds == pytest.approx(30)


def test_a_slow_rank_costs_what_its_finding_says_and_explains_the_wait_for_it() -> None:
    run = attempt(1, 0, 50, [(10 * step, 10) for step in range(5)], stage_wait=[3.0] * 5)

    spent = time_spent([run], [finding(Kind.SLOW_GPU, 29)], BEGIN + 50)

    # The first step is the start. Two steps of ten seconds would take eight without the rank.
    assert seconds(spent) == {Part.START: 10, Part.SLOW: 4, Part.BUBBLE: 3 * 2 + 2 * 1, Part.COMPUTE: 28}
    assert [(cost.finding, cost.seconds) for cost in spent.findings] == [("finding-1", pytest.approx(4))]


def test_of_two_slow_ranks_at_a_time_the_costlier_counts() -> None:
    run = attempt(1, 0, 30, [(0, 10), (10, 10), (20, 10)])
    slow = [finding(Kind.SLOW_GPU, 0, cost=1.25), finding(Kind.SLOW_HOST, 0, cost=2.0, number=2)]

    spent = time_spent([run], slow, BEGIN + 30)

    assert seconds(spent)[Part.SLOW] == 10
    assert [cost.finding for cost in spent.findings] == ["finding-2"]


def test_a_hang_at_the_end_of_a_live_run_grows_with_the_time() -> None:
    run = attempt(1, 0, 20, [(0, 10), (10, 10)], live=True)

    spent = time_spent([run], [finding(Kind.HANG, 25)], BEGIN + 100)

    assert seconds(spent) == {Part.START: 10, Part.COMPUTE: 10, Part.OTHER: 5, Part.HANG: 75}
    assert spent.findings[0].seconds == pytest.approx(75)


def test_between_attempts_is_a_pause_or_a_start_and_steps_done_again_are_lost() -> None:
    first = attempt(1, 0, 40, [(10 * step, 10) for step in range(4)])
    second = attempt(2, 100, 120, [(100, 10), (110, 10)], first_step=3, ended_well=False)
    third = attempt(3, 150, 170, [(150, 10), (160, 10)], first_step=5)

    spent = time_spent([first, second, third], [], BEGIN + 1000)

    # Of the first attempt steps 3 and 4 were done again; 60 s passed until the second, and 30 after its failure.
    assert seconds(spent) == {Part.START: 10 * 3 + 30, Part.REDONE: 20, Part.PAUSE: 60, Part.COMPUTE: 10 * 3}


def test_what_a_person_called_none_costs_nothing() -> None:
    refuted = finding(Kind.SLOW_GPU, 0).model_copy(update={"refuted_unix_ns": 1})

    spent = time_spent([attempt(1, 0, 20, [(0, 10), (10, 10)])], [refuted], BEGIN + 20)

    assert spent.findings == []


durations = st.floats(0, 50)
times = st.floats(-50, 500)
attempts = st.lists(
    st.tuples(times, times, st.lists(st.tuples(times, durations, durations, durations, durations), max_size=8)),
    min_size=1,
    max_size=4,
)
found = st.lists(st.tuples(st.sampled_from(Kind), times, st.none() | times, st.floats(0.5, 10)), max_size=5)


@given(attempts, found, st.booleans(), times)
def test_the_parts_add_up_to_the_wall_time_whatever_the_clocks_say(runs, findings, live: bool, now: float) -> None:
    """Steps may overlap, go back in time, and tell of longer checkpoints than there was room for."""
    history = [
        attempt(
            number,
            begin,
            end,
            [(start, duration) for start, duration, *_ in steps],
            live=live and number == len(runs),
            ended_well=number % 2 == 0,
            first_step=max(1, 5 - number),
            stage_wait=[each[2] for each in steps],
            checkpoint=[each[3] for each in steps],
            evaluation=[each[4] for each in steps],
        )
        for number, (begin, end, steps) in enumerate(runs, start=1)
    ]
    costly = [
        finding(kind, since, until, cost=cost, number=number, of_attempt=1 + number % len(runs))
        for number, (kind, since, until, cost) in enumerate(findings)
    ]

    spent = time_spent(history, costly, BEGIN + now)

    parts = {each.part: each.seconds for each in spent.parts}
    assert set(parts) == set(Part)
    assert all(value >= -1e-6 for value in parts.values())
    assert sum(parts.values()) == pytest.approx(spent.wall_seconds, rel=1e-6, abs=1e-5)
