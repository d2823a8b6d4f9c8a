"""Ranks as a request names them: `0,2,8-15`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from megatronapp.core.errors import UsageError
from megatronapp.core.trace.limits import MAX_WORLD

MAX_RANKS = 4_096
"""Of one answer; more at once no viewer opens."""
RANGES = r"^([0-9]{1,10}(-[0-9]{1,10})?(,[0-9]{1,10}(-[0-9]{1,10})?)*)?$"
Ranks = Annotated[str, Query(max_length=4096, pattern=RANGES, description="as 0,2,8-15; empty: all")]


def parse_ranks(text: str) -> list[int]:
    """`0,2,8-15` → the ranks, ascending. Raises UsageError for a range that is no range, and for too many ranks."""
    spans = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < MAX_WORLD:
            raise UsageError(f"ranks: {part!r} is no range of ranks; write it as 8-15, below {MAX_WORLD}")
        spans.append((low, high))
    ranks: list[int] = []
    for low, high in sorted(spans):
        begin = max(low, ranks[-1] + 1) if ranks else low
        if len(ranks) + high - begin >= MAX_RANKS:
            raise UsageError(f"ranks: more than {MAX_RANKS}; ask for fewer, or leave ranks out to get all")
        ranks.extend(range(begin, high + 1))
    return ranks
