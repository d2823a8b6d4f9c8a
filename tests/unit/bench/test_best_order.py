"""The search for a step's best order."""

from __future__ import annotations

import random

from bench import dpp
from bench._slept_pipeline import DYNAMIC, Setting, simulated
from bench.best_order import best_seconds, moved
from megatronapp.core.pipeline.policy import places_of

LENGTH = next(each for each in dpp.SCENARIOS if each.length_cv)
SETTING = Setting(LENGTH, (1.0, 1.0, 1.0), 0.0, 20.0, 16, 5)


def test_a_move_changes_one_stage_and_no_lane() -> None:
    chances, orders = random.Random(1), SETTING.orders(DYNAMIC)
    for _ in range(500):
        before, orders = orders, moved(orders, chances)

        assert sum(one != other for one, other in zip(before, orders, strict=True)) <= 1
        for order in orders:
            places_of(SETTING.layout, order)  # raises where a lane's microbatches are mixed


def test_what_is_found_takes_less_time_than_what_was_chosen() -> None:
    chosen = simulated(SETTING, DYNAMIC, seed=3)

    assert best_seconds(SETTING, 3, orders=0) == chosen.end_ns / 1e9
    assert best_seconds(SETTING, 3, orders=1500) < 0.995 * chosen.end_ns / 1e9
