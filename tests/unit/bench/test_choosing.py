"""What choosing while running gains over a replay is what the design said, and W's place is why it may be less."""

from __future__ import annotations

from bench._choosing import CASES, FILLING, PLACED, over_replay
from megatronapp.core.pipeline.placement import Layout

LAYOUT = Layout(stages=4, chunks=2, microbatches=16, split=True)


def test_a_filling_w_makes_the_replay_weak() -> None:
    lengths = CASES[1]

    filling, placed = (over_replay(LAYOUT, lengths.variation, hint, 10, None) for hint in (FILLING, PLACED))

    assert abs(filling - lengths.design[4, 16]) < 0.03
    assert 1 < placed < filling
