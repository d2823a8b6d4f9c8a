"""A record that can't be taken in is kept for a person, who can look at it and hand it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from megatronapp.core.errors import NotFoundError
from megatronapp.core.job_series import JobSeries
from megatronapp.core.metrics import JOB_LABELS
from megatronapp.core.quarantine import Quarantine, command, entries, release
from megatronapp.v1 import trace_pb2

JOB = "team-a/x"


@pytest.fixture
def counter() -> Counter:
    return Counter("quarantined_records", "", JOB_LABELS, registry=CollectorRegistry())


def put(quarantine: Quarantine, record: bytes, reason: str = "ValueError: no such phase", job: str = JOB) -> None:
    quarantine.put(record, run="run-1", job=job, attempt=1, rank=3, reason=reason)


def counted(counter: Counter) -> float:
    return counter.labels(training_job="x", namespace="team-a")._value.get()


def test_a_record_is_kept_with_whose_it_is_and_why(tmp_path: Path, counter: Counter) -> None:
    put(Quarantine(tmp_path, counter), b"\x00\nbytes")

    (found,) = entries(tmp_path)
    assert (found.record, found.job, found.run, found.rank) == (b"\x00\nbytes", JOB, "run-1", 3)
    assert found.reason == "ValueError: no such phase"
    assert counted(counter) == 1


def test_the_same_record_at_each_start_is_kept_once_and_counted_each_time(tmp_path: Path, counter: Counter) -> None:
    for _ in range(3):
        put(Quarantine(tmp_path, counter, max_records=1), b"poison")

    assert len(entries(tmp_path)) == 1
    assert counted(counter) == 3


def test_a_full_folder_keeps_what_it_has(tmp_path: Path, counter: Counter) -> None:
    quarantine = Quarantine(tmp_path, counter, max_records=2)

    for number, record in enumerate((b"first", b"second", b"third")):
        put(quarantine, record, job=f"team-{number}/x")

    assert {found.record for found in entries(tmp_path)} == {b"first", b"second"}


def test_one_job_takes_its_share_of_records_and_no_more(tmp_path: Path, counter: Counter) -> None:
    for quarantine in (Quarantine(tmp_path, counter, max_records=20), Quarantine(tmp_path, counter, max_records=20)):
        for number in range(10):
            put(quarantine, bytes([number]))
    put(quarantine, b"another tenant's", job="team-b/y")

    assert [found.record for found in entries(tmp_path)] == [b"\x00", b"\x01", b"another tenant's"]
    assert counted(counter) == 20


def test_one_job_takes_its_share_of_bytes_and_no_more(tmp_path: Path, counter: Counter) -> None:
    quarantine = Quarantine(tmp_path, counter, max_bytes=10_000)

    for number in range(10):
        put(quarantine, bytes([number]) * 400)

    assert len(entries(tmp_path)) == 2


def test_a_folder_that_takes_nothing_stops_nobody(tmp_path: Path, counter: Counter) -> None:
    (tmp_path / "file").touch()

    put(Quarantine(tmp_path / "file" / "folder", counter), b"poison")

    assert counted(counter) == 1


def test_a_record_that_was_handed_back_is_taken_up_until_it_is_done(tmp_path: Path, counter: Counter) -> None:
    quarantine = Quarantine(tmp_path, counter)
    put(quarantine, b"poison")
    assert quarantine.take_released() == []

    release(tmp_path, entries(tmp_path)[0].id[:6])

    assert [each.record for each in quarantine.take_released()] == [b"poison"]
    for each in quarantine.take_released():
        each.done()
    assert quarantine.take_released() == []
    assert entries(tmp_path) == []


def test_records_are_handed_back_in_the_order_in_which_they_were_asked_for(tmp_path: Path, counter: Counter) -> None:
    quarantine = Quarantine(tmp_path, counter)
    for record in (b"a", b"b", b"c"):
        put(quarantine, record)
    by_record = {found.record: found.id for found in entries(tmp_path)}

    for record in (b"c", b"a", b"b"):
        release(tmp_path, by_record[record])

    assert [each.record for each in quarantine.take_released()] == [b"c", b"a", b"b"]


def test_a_damaged_file_does_not_hide_the_others(tmp_path: Path, counter: Counter) -> None:
    quarantine = Quarantine(tmp_path, counter)
    put(quarantine, b"poison")
    release(tmp_path, entries(tmp_path)[0].id)
    (tmp_path / "released" / "damaged.record").write_bytes(b"{")

    assert [each.record for each in quarantine.take_released()] == [b"poison"]


def test_an_id_that_names_none_or_several_is_an_error(tmp_path: Path, counter: Counter) -> None:
    put(Quarantine(tmp_path, counter), b"poison")

    for identity in ("", "zz", "*"):
        with pytest.raises(NotFoundError, match="begin with"):
            release(tmp_path, identity)


def test_the_command_lists_shows_and_hands_back(
    tmp_path: Path, counter: Counter, capsys: pytest.CaptureFixture[str]
) -> None:
    quarantine = Quarantine(tmp_path, counter)
    hello = trace_pb2.Hello(placement=trace_pb2.Placement(node="node-7"))
    record = trace_pb2.RankMessage(message=trace_pb2.TraceMessage(hello=hello)).SerializeToString()
    put(quarantine, record)
    identity = entries(tmp_path)[0].id

    assert command.main(["list", str(tmp_path)]) == 0
    assert f"{identity}  " in capsys.readouterr().out
    assert command.main(["show", str(tmp_path), identity]) == 0
    shown = capsys.readouterr().out
    assert "no such phase" in shown
    assert 'node: "node-7"' in shown
    assert command.main(["replay", str(tmp_path), identity]) == 0
    assert [each.record for each in quarantine.take_released()] == [record]


def test_what_is_no_message_is_shown_in_hexadecimal(
    tmp_path: Path, counter: Counter, capsys: pytest.CaptureFixture[str]
) -> None:
    put(Quarantine(tmp_path, counter), b"\xff\xfe")

    assert command.main(["show", str(tmp_path), entries(tmp_path)[0].id]) == 0

    assert "ff fe" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list", str(tmp_path / "nowhere")]) == 1

    assert "nothing was set aside" in capsys.readouterr().err


def test_records_that_name_many_jobs_have_series_of_some(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    series = JobSeries(registry, max_jobs=2)
    counter = Counter("quarantined_records", "", JOB_LABELS, registry=registry)
    series.hold(counter)
    quarantine = Quarantine(tmp_path, counter, series)

    for number in range(10):
        put(quarantine, b"poison", job=f"team/{number}")
    put(quarantine, b"poison", job="team/" + "x" * 100_000)

    lines = [line for line in generate_latest(registry).decode().splitlines() if "records_total{" in line]
    assert len(lines) == 2
    assert max(map(len, lines)) < 200
