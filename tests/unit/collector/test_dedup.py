from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector.dedup import KEPT_PROCESSES, Dedup, SeenNumbers

NUMBERS = st.lists(st.integers(1, 60), max_size=120)


@given(numbers=NUMBERS)
def test_a_number_is_new_exactly_once(numbers: list[int]) -> None:
    seen = SeenNumbers()

    new = [seen.add(number) for number in numbers]

    assert new == [number not in numbers[:index] for index, number in enumerate(numbers)]
    assert all((number in seen) == (number in numbers) for number in range(62))


@given(numbers=NUMBERS)
def test_intervals_stay_apart_and_ascending(numbers: list[int]) -> None:
    seen = SeenNumbers()
    for number in numbers:
        seen.add(number)

    flat = [edge for interval in seen.intervals for edge in interval]
    assert flat == sorted(flat)
    assert all(low[1] + 1 < high[0] for low, high in zip(seen.intervals, seen.intervals[1:], strict=False))


def test_memory_is_bounded() -> None:
    seen = SeenNumbers()
    for number in range(1, 4 * SeenNumbers.MAX_INTERVALS, 2):
        seen.add(number)

    assert len(seen.intervals) == SeenNumbers.MAX_INTERVALS
    assert 2 in seen
    assert 4 * SeenNumbers.MAX_INTERVALS - 2 not in seen


def test_state_survives_json_and_does_not_change_with_what_comes_later() -> None:
    dedup = Dedup()
    dedup.add(("run", 1, 0, 2**63 + 5), 1)
    state = dedup.to_json()
    dedup.add(("run", 1, 0, 2**63 + 5), 2)

    restored = Dedup.from_json(json.loads(json.dumps(state)))

    assert restored.contains(("run", 1, 0, 2**63 + 5), 1)
    assert not restored.contains(("run", 1, 0, 2**63 + 5), 2)


def test_hello_is_always_new_and_attempts_are_forgotten() -> None:
    dedup = Dedup()

    assert dedup.add(("run", 1, 0, 1), 0)
    assert dedup.add(("run", 1, 0, 1), 0)
    assert dedup.add(("run", 1, 0, 1), 1)
    dedup.forget([("run", 1)])
    assert dedup.add(("run", 1, 0, 1), 1)


def test_a_rank_that_begins_anew_without_end_is_kept_in_its_newest_processes() -> None:
    dedup = Dedup()
    for incarnation in range(1, 3 * KEPT_PROCESSES):
        assert dedup.add(("run", 1, 0, incarnation), 1)
    assert dedup.add(("run", 1, 1, 7), 1)

    again = Dedup.from_json(dedup.to_json())
    again.add(("run", 1, 0, 9_999), 1)

    for each in (dedup, again):
        assert len(each.seen) == KEPT_PROCESSES + 1
        assert not each.add(("run", 1, 0, 3 * KEPT_PROCESSES - 1), 1)
        assert not each.add(("run", 1, 1, 7), 1)
