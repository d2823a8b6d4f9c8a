"""Interleaved blocks: every mode once a round, in an order drawn anew."""

from bench._blocks import BLOCK, Blocks

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
