"""When heartbeats are due."""

import itertools

from megatronapp.trainer.agent.heartbeat import INTERVAL_SECONDS, BeatClock

NOW = 1_000.0


def moments(rank: int, seconds: float = 10.0, tick: float = 0.01) -> list[float]:
    clock = BeatClock(rank, NOW)
    return [NOW + i * tick for i in range(round(seconds / tick)) if clock.due(NOW + i * tick)]


def test_a_rank_beats_once_in_an_interval() -> None:
    beats = moments(3)

    assert len(beats) == 10
    assert max(b - a for a, b in itertools.pairwise(beats)) < 1.02 * INTERVAL_SECONDS


def test_ranks_that_came_together_beat_at_moments_of_their_own() -> None:
    beats = sorted(moment for rank in range(8) for moment in moments(rank))

    assert max(b - a for a, b in itertools.pairwise(beats)) < 0.25 * INTERVAL_SECONDS


def test_beats_that_were_missed_are_not_made_up_for() -> None:
    clock = BeatClock(0, NOW)

    assert clock.due(NOW + 7.4)
    assert not clock.due(NOW + 7.5)
    assert clock.due(NOW + 8.0)
