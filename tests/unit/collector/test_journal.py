import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector.journal import Journal

RECORDS = st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=5), max_size=10)


def contents(folder: Path, start: int = 0) -> list[tuple[int, bytes]]:
    journal = Journal(folder, segment_bytes=256, fsync=False)
    records = list(journal.replay(start))
    journal.close()
    return records


@given(groups=RECORDS)
def test_replays_what_was_written_in_order(groups: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, segment_bytes=256, fsync=False)

    for group in groups:
        journal.write([[record] for record in group])
    journal.close()

    flat = [record for group in groups for record in group]
    assert contents(folder) == list(enumerate(flat))


def test_positions_go_on_after_reopening(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.write([[b"a"], [b"b"]])
    first.close()

    second = Journal(tmp_path)

    assert second.write([[b"c"]]) == 2
    assert contents(tmp_path) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_positions_begin_beyond_what_the_store_has_when_the_journal_is_gone(tmp_path: Path) -> None:
    journal = Journal(tmp_path, at_least=7)

    assert journal.write([[b"x"]]) == 7
    assert contents(tmp_path) == [(7, b"x")]


@given(cut=st.integers(min_value=1, max_value=60))
def test_a_torn_tail_loses_only_the_torn_record(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, fsync=False)
    journal.write([[b"ke", b"", b"pt"]])
    journal.write([[b"torn"] * 20])
    journal.close()
    segment = next(folder.glob("*.log"))
    os.truncate(segment, segment.stat().st_size - cut)

    reopened = Journal(folder, fsync=False)

    assert reopened.position == 1
    assert reopened.write([[b"next"]]) == 1
    assert contents(folder) == [(0, b"kept"), (1, b"next")]


def test_trim_keeps_everything_from_the_position_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=16, fsync=False)
    for number in range(20):
        journal.write([[bytes([number]) * 40]])

    freed = journal.trim(13)
    journal.close()

    assert freed > 0
    kept = contents(tmp_path)
    assert kept[0][0] <= 13
    assert [position for position, _ in kept if position >= 13] == list(range(13, 20))


def test_a_flipped_bit_is_not_replayed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fsync=False)
    journal.write([[b"first record"], [b"second record"]])
    journal.close()
    segment = next(tmp_path.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)

    assert contents(tmp_path) == [(0, b"first record")]
