"""The weekly report counts right, says when it is due, and reads well."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.gateway.notify.events import GroupState
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.report import due_end, markdown, report
from megatronapp.gateway.notify.settings import Weekday

WEEK = 7 * 86_400.0


def incident(
    opened: float, resolved: float | None, level: Level = Level.P1, name: str = "SlowGPU", **labels: object
) -> Incident:
    state = GroupState.model_validate(
        {"group": "g", "firing": resolved is None, "name": name, "level": level, "summary": "s"}
        | {"since_unix_seconds": opened}
        | labels
    )
    return Incident(f"{name}-{opened}", state, opened=opened, reopened=opened, resolved=resolved)


INCIDENTS = [
    incident(-5, 20, Level.P0, "TrainingHang"),  # of the week before
    incident(10, 70, Level.P0, "TrainingHang", node="n1", namespace="ml", training_job="gpt", cause="host_cpu"),
    incident(20, 140, Level.P1, node="n1", gpu_uuids=("GPU-5",), namespace="ml", training_job="gpt", cause="thermal"),
    incident(30, None, Level.P1, node="n1", gpu_uuids=("GPU-5",), namespace="ml", training_job="bert", cause="thermal"),
    incident(40, WEEK + 9, Level.P3, "ClockUncertain"),  # resolved after the week's end
    incident(WEEK, None, Level.P0),  # of the week after
]


def test_it_counts_levels_causes_times_and_offenders() -> None:
    found = report(INCIDENTS, 0, WEEK)

    assert (found.incidents, found.open, found.mean_seconds_to_resolve) == (4, 2, 90.0)
    assert [(row.level, row.incidents, row.open, row.mean_seconds_to_resolve) for row in found.levels] == [
        (Level.P0, 1, 0, 60.0),
        (Level.P1, 2, 1, 120.0),
        (Level.P2, 0, 0, None),
        (Level.P3, 1, 1, None),
    ]
    assert [(row.cause, row.incidents) for row in found.causes] == [
        ("thermal", 2), ("ClockUncertain", 1), ("host_cpu", 1),
    ]  # fmt: skip
    assert [(who.kind, who.name, who.incidents, who.alerts) for who in found.repeat_offenders] == [
        ("node", "n1", 3, ("SlowGPU", "TrainingHang")),
        ("gpu", "GPU-5", 2, ("SlowGPU",)),
        ("job", "ml/gpt", 2, ("SlowGPU", "TrainingHang")),
    ]


def test_it_reads_well() -> None:
    text = markdown(report(INCIDENTS, 0, WEEK))

    assert text.startswith("# Incidents from 1970-01-01 00:00 UTC to 1970-01-08 00:00 UTC\n")
    assert "4 incidents, 2 still open, resolved after 1 min 30 s on average." in text
    assert "| P1 | 2 | 1 | 2 min |" in text
    assert "| node | n1 | 3 | SlowGPU, TrainingHang |" in text


def test_a_quiet_week_says_so() -> None:
    assert "Nothing happened." in markdown(report([], 0, WEEK))


def test_a_name_cannot_break_the_table() -> None:
    odd = [incident(at, None, node="a|b\nc") for at in (1.0, 2.0)]

    assert "| node | a&#124;b c | 2 | SlowGPU |" in markdown(report(odd, 0, WEEK))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-11-20T10:00", "2026-11-20T10:00"),
        ("2026-11-21T09:59", "2026-11-20T10:00"),
        ("2026-11-21T10:00", None),  # a day late: never
        ("2026-11-20T09:59", None),
    ],
)
def test_it_is_due_on_its_day_and_hour(now: str, end: str | None) -> None:
    at = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()

    due = due_end(at, Weekday.FRIDAY, 10)

    assert due == (datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp() if end else None)


@given(st.floats(0, 4e9), st.sampled_from(list(Weekday)), st.integers(0, 23))
def test_it_is_due_for_one_day_of_each_week(now: float, weekday: Weekday, hour: int) -> None:
    end = due_end(now, weekday, hour)

    if end is not None:
        assert 0 <= now - end < 86_400
        assert datetime.fromtimestamp(end, UTC).weekday() == weekday.number


def test_it_tells_the_trend_over_four_weeks() -> None:
    opened = [WEEK + 5, 2 * WEEK + 5, 2 * WEEK + 6, 3 * WEEK + 5]
    found = report(
        [incident(at, at + 60, Level.P2) for at in opened] + [incident(5, None, Level.P0)], 3 * WEEK, 4 * WEEK
    )

    assert [(week.to_unix_seconds, week.incidents, week.by_level[Level.P2]) for week in found.trend] == [
        (WEEK, 1, 0), (2 * WEEK, 1, 1), (3 * WEEK, 2, 2), (4 * WEEK, 1, 1),
    ]  # fmt: skip
    assert [week.mean_seconds_to_resolve for week in found.trend] == [None, 60.0, 60.0, 60.0]
    lines = markdown(found).splitlines()
    assert "| until | incidents | P0 | P1 | P2 | P3 | mean time to resolve | |" in lines
    assert lines[-1] == "| 1970-01-29 00:00 UTC | 1 | 0 | 0 | 1 | 0 | 1 min | -1 |"


def test_a_first_week_has_no_trend() -> None:
    assert "| until |" not in markdown(report(INCIDENTS[1:], 0, WEEK))
