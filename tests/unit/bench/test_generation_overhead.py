"""Which tokens are watched, and when a measurement counts."""

from collections import Counter

import pytest

from bench.generation_overhead import BEGINNINGS, MODES, NEW_TOKENS, TOKENS, WARM_UP, Measured, mode_of

REQUESTS = 4 * BEGINNINGS.steps(1)


def measured(*, watched_seconds: float, frames: int = 10, dropped: int = 0) -> Measured:
    """Of steps of 1 s, watched ones of so many; what is not counted takes longer."""
    found = Measured(rounds=4)
    for request in range(WARM_UP + REQUESTS):
        for step in range(NEW_TOKENS):
            mode, counted = mode_of(request, step)
            seconds = watched_seconds if mode == "watched" else 1.0
            found.add(request, step, seconds if counted and request >= WARM_UP else 9.0)
    found.frames, found.dropped_frames = frames, dropped
    return found


def test_each_request_has_tokens_in_every_mode() -> None:
    for request in range(REQUESTS):
        counted = Counter(mode_of(request, step)[0] for step in range(1, NEW_TOKENS) if mode_of(request, step)[1])

        assert counted == dict.fromkeys(MODES, TOKENS.length)


def test_requests_begin_in_every_mode_alike() -> None:
    beginnings = Counter(mode_of(request, 0)[0] for request in range(REQUESTS))

    assert beginnings == dict.fromkeys(MODES, REQUESTS // len(MODES))


def test_a_request_goes_on_in_the_mode_of_its_beginning() -> None:
    for request in range(REQUESTS):
        assert mode_of(request, 0)[0] == mode_of(request, 1)[0]


def test_neither_the_warm_up_nor_a_change_of_mode_is_counted() -> None:
    report = measured(watched_seconds=1.03).report()

    assert (report["watched"]["longer_ratio"], report["requests"]) == (0.03, REQUESTS)
    assert report["control"]["longer_ratio"] == 0
    assert report["ok"] is True


def test_a_slow_beginning_counts_as_its_share_of_a_request() -> None:
    found = Measured(rounds=4)
    for request in range(WARM_UP + REQUESTS):
        for step in range(NEW_TOKENS):
            slow = step == 0 and mode_of(request, step)[0] == "watched"
            found.add(request, step, 2.0 if slow else 1.0)

    watched = found.report()["watched"]

    assert watched["longer_ratio"] == pytest.approx(1 / NEW_TOKENS, abs=1e-5)
    assert (watched["beginning"]["longer_ratio"], watched["token"]["longer_ratio"]) == (1.0, 0.0)


def test_more_than_the_goal_is_missed() -> None:
    assert measured(watched_seconds=1.06).report()["ok"] is False


def test_what_was_not_shown_was_not_measured() -> None:
    assert measured(watched_seconds=1.0, frames=0).report()["ok"] is False
    assert measured(watched_seconds=1.0, dropped=1).report()["ok"] is False


def test_no_request_begins_after_the_limit() -> None:
    assert Measured(rounds=2).goes_on(0)
    assert not Measured(rounds=2, limit_seconds=0).goes_on(0)
    assert not Measured(rounds=2).goes_on(WARM_UP + 2 * BEGINNINGS.steps(1))
