"""Numbers in sentences."""

from __future__ import annotations

from megatronapp.core.wording import counted


def test_one_is_not_many() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
