"""Interleaved blocks: every mode once a round, in an order drawn anew."""

import pytest

from bench._blocks import BLOCK, Blocks, Timings, interval95, process_seconds, trimmed_interval95

MODES = ("off", "control", "base", "full")


def rounds(blocks: Blocks, steps: int) -> dict[int, list[str]]:
    seen: dict[int, list[str]] = {}
    for step in range(1, blocks.iterations(steps)):
        mode, turn, counted = blocks.mode_of(step)
        if counted:
            seen.setdefault(turn, []).append(mode)
    return seen


def test_each_mode_has_one_block_in_each_round() -> None:
    blocks = Blocks(modes=MODES, settling=1)

    seen = rounds(blocks, 200)

    assert len(seen) == 20
    for modes in seen.values():
        assert sorted(modes) == sorted(MODES * BLOCK)
        assert all(len(set(modes[i : i + BLOCK])) == 1 for i in range(0, len(modes), BLOCK))


def test_no_mode_always_follows_the_same_other() -> None:
    orders = [tuple(modes[::BLOCK]) for modes in rounds(Blocks(modes=MODES, settling=1), 200).values()]

    before_base = {order[order.index("base") - 1] for order in orders if order.index("base")}

    assert before_base == {"off", "control", "full"}


def test_first_steps_of_a_block_are_not_counted() -> None:
    blocks = Blocks(modes=("up", "killed"), settling=2)

    assert [blocks.mode_of(step)[2] for step in range(1, 13)] == [False] * 2 + [True] * BLOCK


def test_blocks_may_have_another_length() -> None:
    blocks = Blocks(modes=("off", "watched"), settling=0, length=2)

    modes = [blocks.mode_of(step)[:2] for step in range(1, blocks.steps(2) + 1)]

    assert len(modes) == 8
    assert all(modes[at] == modes[at + 1] for at in range(0, 8, 2))


def timings(*, rounds: int, watched_seconds: float) -> Timings:
    """Of steps of 1 s, watched ones of so many."""
    blocks = Blocks(modes=("off", "watched"), settling=1, length=3)
    found = Timings(blocks)
    for step in range(1, blocks.steps(rounds) + 1):
        found.add(step, watched_seconds if blocks.mode_of(step)[0] == "watched" else 1.0)
    return found


def test_a_round_that_was_cut_off_does_not_count() -> None:
    found = timings(rounds=3, watched_seconds=1.02)

    found.add_to("off", 3, 9.0)
    found.add_to("watched", 3, 9.0)

    assert found.rounds == 3
    assert found.robust_seconds() == 1.0
    assert found.against_first("watched")["steps"] == 9


def test_a_stall_does_not_move_the_robust_difference_but_the_mean() -> None:
    found = timings(rounds=10, watched_seconds=1.02)

    for _ in range(3):
        found.add_to("off", 10, 5.0)
        found.add_to("watched", 10, 1.02)

    assert found.robustly_against_first("watched")["longer_ratio"] == 0.02
    assert found.robustly_against_first("watched")["mean_ratio"] < -0.2
    assert found.against_first("watched")["longer_ratio"] < -0.2


def test_a_trimmed_interval_is_yuens() -> None:
    """Data, mean and Winsorised deviation: Wilcox, Introduction to Robust Estimation and Hypothesis Testing."""
    values = [77, 87, 88, 114, 151, 210, 219, 246, 253, 262, 296, 299, 306, 376, 428, 515, 666, 1310, 2611]

    mean, half = trimmed_interval95(values)

    winsorised, t_of_12 = 146.7, 2.179
    assert mean == pytest.approx(282.7, abs=0.05)
    assert half == pytest.approx(t_of_12 * winsorised * (18 / (13 * 12)) ** 0.5, rel=0.002)


def test_few_values_are_not_trimmed() -> None:
    values = [1.0, 2.0, 4.0, 9.0]

    assert trimmed_interval95(values) == pytest.approx(interval95(values))


def test_a_run_is_over_at_its_limit() -> None:
    age = process_seconds()

    assert Blocks(modes=("off", "on"), settling=0, limit_seconds=age - 1).over()
    assert not Blocks(modes=("off", "on"), settling=0, limit_seconds=age + 600).over()
    assert not Blocks(modes=("off", "on"), settling=0).over()
