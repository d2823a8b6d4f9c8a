"""The table of how soon hangs were told of."""

from __future__ import annotations

import json

from tests.integration.megatrace import times


def lines(*seconds: float | None) -> list[str]:
    return [json.dumps({"fault": "kill", "seconds": each}) for each in seconds]


def test_hangs_that_were_told_of_in_time_are_counted_with_their_seconds() -> None:
    text, in_time = times.table(lines(6.0, 8.0, 7.0))

    assert in_time
    assert text.splitlines()[1].split() == ["kill", "3", "3", "7.0", "8.0"]


def test_one_that_came_late_or_never_fails() -> None:
    assert times.table(lines(6.0, 10.5))[1] is False
    assert times.table(lines(6.0, None))[1] is False
