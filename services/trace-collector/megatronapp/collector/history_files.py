"""Which of an attempt's history files count, and when they are merged. Pure.

Each write of the store adds a small file (`history`). From time to time a write puts all small ones, and its own rows,
into one (`merged`, or `sealed` once it is large): a file made by merging stands for all small and merged ones of its
write and of earlier ones, which are deleted later. So nothing is lost, or counted twice, wherever a crash happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megatronapp.collector.parts import Part

HISTORY, MERGED, SEALED = TABLES = ("history", "merged", "sealed")
MERGE_FILES = 32
"""Small files after which they are merged."""
SEALED_STEPS = 20_000
"""A file of so many steps (3 MB) is never merged again."""


def live(parts: Iterable[Part]) -> list[Part]:
    """The files that count, oldest write first."""
    by_write = sorted(parts, key=lambda part: part.write)
    sealed = [part for part in by_write if part.table == SEALED]
    border = max((part.write for part in sealed), default=-1)
    merged = [part for part in by_write if part.table == MERGED and part.write > border][-1:]
    border = max([border, *(part.write for part in merged)])
    return [*sealed, *merged, *(part for part in by_write if part.table == HISTORY and part.write > border)]


def obsolete(parts: Sequence[Part]) -> list[Part]:
    """Files that others stand for."""
    counted = set(live(parts))
    return [part for part in parts if part not in counted]


def to_merge(parts: Iterable[Part]) -> list[Part]:
    """Of the files that count, those to merge with what is being written; none: it is not time yet."""
    small = [part for part in live(parts) if part.table != SEALED]
    return small if len(small) >= MERGE_FILES else []


def name_of_merged(steps: int) -> str:
    return SEALED if steps >= SEALED_STEPS else MERGED
