"""Which history files count: each write once, wherever merging was interrupted."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector import history_files
from megatronapp.collector.parts import Part


def part(table: str, write: int) -> Part:
    return Part(Path(f"{table}-{write:08d}-1-2.parquet"), table, write, 1, 2)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=300))
def test_every_write_counts_once_whatever_is_merged_and_whenever_what_is_obsolete_goes(
    writes: list[tuple[bool, bool]],
) -> None:
    """(whether a merged file is sealed, whether the obsolete ones are deleted before the write)"""
    covers: dict[Part, set[int]] = {}
    for write, (seals, deletes) in enumerate(writes, start=1):
        if deletes:
            for gone in history_files.obsolete(list(covers)):
                del covers[gone]
        merging = history_files.to_merge(covers)
        name = (history_files.SEALED if seals else history_files.MERGED) if merging else history_files.HISTORY
        covers[part(name, write)] = {write}.union(*(covers[each] for each in merging))

    counted = [write for each in history_files.live(covers) for write in covers[each]]

    assert sorted(counted) == list(range(1, len(writes) + 1))


def test_small_files_stay_few() -> None:
    files: list[Part] = []
    most = 0
    for write in range(1, 1_000):
        merging = history_files.to_merge(files)
        files = [each for each in files if each not in merging]
        files.append(part(history_files.MERGED if merging else history_files.HISTORY, write))
        most = max(most, len(files))

    assert most == history_files.MERGE_FILES


def test_a_large_file_is_sealed() -> None:
    assert history_files.name_of_merged(history_files.SEALED_STEPS) == "sealed"
    assert history_files.name_of_merged(history_files.SEALED_STEPS - 1) == "merged"
