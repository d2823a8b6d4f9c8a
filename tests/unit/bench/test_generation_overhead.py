"""Which request is watched, and when a measurement counts."""

from collections import Counter

from bench.generation_overhead import WARM_UP, Measured


def measured(*, watched_seconds: float, frames: int = 10, dropped: int = 0) -> Measured:
    """Of requests of 1 s, watched ones of so many."""
    found = Measured(rounds=4)
    for number, mode in enumerate(found.modes()):
        found.add(number, watched_seconds if mode == "watched" else 1.0)
    found.frames, found.dropped_frames = frames, dropped
    return found


def test_every_mode_is_asked_alike_after_the_warm_up() -> None:
    modes = list(Measured(rounds=4).modes())[len(WARM_UP) :]

    assert Counter(modes) == {"off": 8, "control": 8, "watched": 8}


def test_the_warm_up_is_not_counted() -> None:
    report = measured(watched_seconds=1.03).report()

    assert (report["watched"]["longer_ratio"], report["watched"]["requests"]) == (0.03, 8)
    assert report["control"]["longer_ratio"] == 0
    assert report["ok"] is True


def test_more_than_the_goal_is_missed() -> None:
    assert measured(watched_seconds=1.06).report()["ok"] is False


def test_what_was_not_shown_was_not_measured() -> None:
    assert measured(watched_seconds=1.0, frames=0).report()["ok"] is False
    assert measured(watched_seconds=1.0, dropped=1).report()["ok"] is False
