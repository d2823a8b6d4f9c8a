"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
