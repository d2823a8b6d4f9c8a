"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Sequence

TOLD_RANKS = 16
"""A whole node's. What is told goes into mails and chats, which refuse long texts."""


def counted(number: int, what: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ranks_named(ranks: Sequence[int]) -> str:
    """rank 3; ranks 0, 1; of more than TOLD_RANKS the first, and how many others there are."""
    names, others = ", ".join(map(str, ranks[:TOLD_RANKS])), len(ranks) - TOLD_RANKS
    return (
        ("ranks " if len(ranks) > 1 else "rank ") + names + (f" and {counted(others, 'other')}" if others > 0 else "")
    )
