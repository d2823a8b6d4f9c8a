"""The folder of recordings: what is left behind is finished, what is over is gone, and it has an end."""

import os
import time
from pathlib import Path

import pytest

from megatronapp.gateway.errors import ConflictError
from megatronapp.gateway.scope.recordings.format import Header, Kind, packed_entry
from megatronapp.gateway.scope.recordings.store import Recordings

EVENT = b'{"event": {"offset": "1", "event": {"alert": {"kind": "nonfinite"}}}}'


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    return Recordings(tmp_path, max_bytes=1 << 20, days=30, max_seconds=60)


def test_what_a_gateway_that_was_ended_left_behind_is_finished(recordings: Recordings) -> None:
    draft = recordings.draft(Header(name="cut"))
    draft.write(packed_entry(Kind.TEXT, 10, EVENT) + packed_entry(Kind.TEXT, 20, EVENT)[:-3])
    draft._file.close()
    os.utime(draft._path, (0, time.time() - 3600))
    recordings.sweep()

    (found,) = recordings.list()
    assert (found.header.name, found.header.events, found.header.frames) == ("cut", 1, 0)
    assert recordings.index(found.id).seconds == 10e-6


def test_one_that_is_being_written_is_neither_listed_nor_touched(recordings: Recordings) -> None:
    draft = recordings.draft(Header())
    recordings.sweep()

    assert recordings.list() == []
    draft.finish(Header())
    assert [one.id for one in recordings.list()] == [draft.id]


def test_recordings_are_gone_after_their_days(recordings: Recordings) -> None:
    draft = recordings.draft(Header())
    draft.finish(Header())
    os.utime(recordings.path(draft.id), (0, time.time() - 31 * 86400))
    recordings.sweep()

    assert recordings.list() == []


def test_a_full_folder_takes_no_more(recordings: Recordings) -> None:
    (recordings.folder / "0123456789abcdef.mscope").write_bytes(bytes(1 << 20))

    with pytest.raises(ConflictError, match="delete some"):
        recordings.draft(Header())
