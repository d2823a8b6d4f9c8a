"""Numbers in sentences."""

from __future__ import annotations

from megatronapp.core.wording import TOLD_RANKS, counted, ranks_named


def test_one_is_not_many() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_many_ranks_are_counted_behind_the_first() -> None:
    assert [ranks_named(ranks) for ranks in ((3,), (0, 1))] == ["rank 3", "ranks 0, 1"]
    assert ranks_named(range(TOLD_RANKS)).endswith(", 14, 15")
    assert ranks_named(range(1024)).endswith(", 14, 15 and 1008 others")
