"""What goes first: whatever is stored, the limits hold, and nothing goes without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.findings_store import Limits, Row
from megatronapp.core.findings_store.limits import JOB_SHARE, beyond_room, beyond_share, expired

LIMITS = Limits(retention_seconds=100e-9, max_findings=20, max_bytes=1_000)

rows_of_many = st.lists(
    st.builds(
        lambda job, opened, stored, size: (job, opened, stored, size),
        st.sampled_from("abc"),
        st.booleans(),
        st.integers(0, 200),
        st.integers(0, 120),
    ),
    max_size=60,
).map(
    lambda drawn: [
        Row(str(number), f"run-{job}", f"team/{job}", opened, 0, stored, size)
        for number, (job, opened, stored, size) in enumerate(drawn)
    ]
)


@given(rows_of_many)
def test_what_is_left_fits_and_nothing_goes_without_need(rows: list[Row]) -> None:
    gone = beyond_room(rows, LIMITS)
    left = [row for row in rows if row not in gone]

    assert len(left) <= LIMITS.max_findings
    assert sum(row.bytes for row in left) <= LIMITS.max_bytes
    if gone:
        assert len(left) == LIMITS.max_findings or sum(row.bytes for row in (*left, gone[-1])) > LIMITS.max_bytes


@given(rows_of_many)
def test_the_resolved_go_before_the_open_and_the_oldest_first(rows: list[Row]) -> None:
    gone = beyond_room(rows, LIMITS)
    left = [row for row in rows if row not in gone]

    assert all((row.open, row.stored_unix_ns) <= (kept.open, kept.stored_unix_ns) for row in gone for kept in left)


@given(rows_of_many)
def test_a_job_keeps_to_its_share_and_takes_from_itself_alone(rows: list[Row]) -> None:
    gone = beyond_share(rows, "team/a", LIMITS)
    left = [row for row in rows if row not in gone and row.job == "team/a"]

    assert {row.job for row in gone} <= {"team/a"}
    assert len(left) <= JOB_SHARE * LIMITS.max_findings
    assert sum(row.bytes for row in left) <= JOB_SHARE * LIMITS.max_bytes


def test_age_counts_from_the_last_write() -> None:
    rows = [
        Row(str(at), "run", "team/a", open=True, updated_unix_ns=0, stored_unix_ns=at, bytes=1) for at in (1, 50, 99)
    ]

    assert [row.stored_unix_ns for row in expired(rows, LIMITS, 150)] == [1]
