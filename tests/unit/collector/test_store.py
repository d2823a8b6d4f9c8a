from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from megatronapp.collector import history, history_files
from megatronapp.collector.blocks import Buffer, SpanBlock, SummaryBlock
from megatronapp.collector.clocks import Reading
from megatronapp.collector.store import Manifest, Store
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.trace.columns import fill_spans, fill_summary, span_columns, summary_columns
from megatronapp.v1 import trace_pb2

KEY = ("run", 1)


def buffer(*steps: int, spans: int = 5) -> Buffer:
    made = Buffer()
    for step in steps:
        batch = trace_pb2.TraceBatch(step=step, names=["forward", "backward"])
        fill_spans(batch, {"start_ns": np.arange(spans) + step, "name": np.arange(spans) % 2})
        made.add_spans(SpanBlock(0, step, tuple(batch.names), span_columns(batch), {}, Reading(100, 3)), size=100)
        summary = trace_pb2.StepSummary(step=step, names=["forward"], duration_ns=10)
        fill_summary(summary, {"name": [0], "kind": [1], "duration_sum_ns": [4], "cpu_sum_ns": [3]})
        made.add_summary(SummaryBlock(0, summary, summary_columns(summary), {}, Reading(100, 3), on_cpu=True), size=50)
    return made


def write(store: Store, number: int, *steps: int) -> None:
    manifest = Manifest(write=number, stored=number * 10)
    store.write({KEY: buffer(*steps)}, {KEY: b"note"}, manifest)
    store.accept(manifest)


def steps_in(store: Store, table: str, low: int = 0, high: int = 1 << 60) -> list[int]:
    tables = list(store.read(store.parts(KEY, table), low, high))
    return sorted({step for one in tables for step in one["step"].to_pylist()})


def test_what_is_written_is_read_back_by_step(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, 1, 1, 2, 3)
    write(store, 2, 4, 5)

    reopened = Store(tmp_path)

    assert reopened.manifest == Manifest(write=2, stored=20)
    assert steps_in(reopened, "spans") == [1, 2, 3, 4, 5]
    assert steps_in(reopened, "summaries", 3, 4) == [3, 4]
    assert steps_in(reopened, "steps", 5, 9) == [5]
    row = next(reopened.read(reopened.parts(KEY, "steps"), 1, 1)).to_pylist()[0]
    assert (row["compute_ns"], row["wait_ns"], row["host_ns"], row["clock_offset_ns"]) == (3, 0, 7, 100)


def test_files_of_a_write_that_did_not_end_are_gone_after_a_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, 1, 1)
    store.write({KEY: buffer(2)}, {}, Manifest(write=2))
    (tmp_path / "manifest.json").write_text('{"write": 1, "stored": 10}')

    reopened = Store(tmp_path)

    assert steps_in(reopened, "spans") == [1]
    assert not list(tmp_path.glob("**/*-00000002-*"))


def test_rows_are_not_read_before_their_write_is_accepted(tmp_path: Path) -> None:
    store = Store(tmp_path)

    store.write({KEY: buffer(1)}, {}, Manifest(write=1))

    assert store.parts(KEY, "spans") == []


def test_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, 1, 1)
    write(store, 2, 2)
    broken = store.parts(KEY, "spans")[0].path
    broken.write_bytes(b"no parquet")

    assert steps_in(store, "spans") == [2]
    assert steps_in(store, "steps") == [1, 2]


def test_a_manifest_that_makes_no_sense_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[")

    with pytest.raises(DataError, match=r"move .* away"):
        Store(tmp_path)


def test_a_folder_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")

    with pytest.raises(UnavailableError):
        Store(tmp_path / "store")


def test_old_files_expire_and_the_attempt_with_the_last_of_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, 1, 1)
    for path in tmp_path.glob("run/attempt-1/*"):
        os.utime(path, (time.time() - 1_000,) * 2)
    write(store, 2, 2)

    assert store.expire(max_age_seconds=500, max_bytes=1 << 40).attempts == []
    assert steps_in(store, "spans") == [2]
    assert store.expire(max_age_seconds=500, max_bytes=0).attempts == [KEY]
    assert not (tmp_path / "run").joinpath("attempt-1").exists()


def test_an_attempt_that_never_ended_a_step_expires_with_its_note(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write({}, {KEY: b"note", ("run", 2): b"note"}, Manifest(write=1))
    os.utime(tmp_path / "run/attempt-1/attempt.pb", (time.time() - 1_000,) * 2)

    assert store.expire(max_age_seconds=500, max_bytes=1 << 40).attempts == [KEY]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["attempt-2"]


def test_a_manifest_of_the_version_before_and_of_a_later_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"write": 3, "stored": 7, "published": 7, "dedup": [], "controls": {}}')
    assert Store(tmp_path).manifest == Manifest(write=3, stored=7, published=7)

    (tmp_path / "manifest.json").write_text('{"write": 4, "owners": {"run-1": "team/gpt"}, "newer": [1]}')
    assert Store(tmp_path).manifest == Manifest(write=4, owners={"run-1": "team/gpt"})


def test_a_run_of_the_manifests_name_lies_beside_it_and_expires_under_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = Manifest(write=1)

    assert store.write({("manifest.json", 1): buffer(1)}, {}, manifest) == {}
    store.accept(manifest)

    assert [part.first for part in Store(tmp_path).parts(("manifest.json", 1), "steps")] == [1]
    assert store.expire(0.0, 1 << 40).attempts == [("manifest.json", 1)]


def test_beyond_its_size_the_store_loses_the_oldest_files_whosever_they_are(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number, age_seconds in ((1, 30), (2, 20), (3, 10)):
        write(store, number, number)
        for path in tmp_path.glob(f"run/attempt-1/*-{number:08d}-*.parquet"):
            os.utime(path, (time.time() - age_seconds,) * 2)
    before = store.size_bytes()
    newest = sum(path.stat().st_size for path in tmp_path.glob("run/attempt-1/*-00000003-*.parquet"))
    histories = sum(path.stat().st_size for path in tmp_path.glob("run/attempt-1/history-0000000[12]-*.parquet"))
    room = newest + histories + len(b"note") + (tmp_path / "manifest.json").stat().st_size

    expired = store.expire(max_age_seconds=1_000, max_bytes=room)

    assert steps_in(store, "steps") == steps_in(store, "spans") == [3]
    assert (expired.age_bytes, expired.size_bytes, expired.attempts) == (0, before - store.size_bytes(), [])
    assert store.size_bytes() <= room


def test_what_is_too_old_is_no_loss_for_size(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, 1, 1)
    for path in tmp_path.glob("run/attempt-1/*"):
        os.utime(path, (time.time() - 1_000,) * 2)

    expired = store.expire(max_age_seconds=500, max_bytes=0)

    assert expired.age_bytes > 0
    assert (expired.size_bytes, expired.attempts) == (0, [KEY])


def test_a_file_that_can_not_be_deleted_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    write(store, 1, 1)
    unlink = Path.unlink

    def unless_spans(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("spans"):
            raise PermissionError(13, "not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unless_spans)

    expired = store.expire(0.0, 0)

    assert steps_in(store, "steps") == []
    assert steps_in(store, "spans") == [1]
    assert expired.attempts == []


def test_the_names_of_messages_are_stored(tmp_path: Path) -> None:
    batch = trace_pb2.TraceBatch(step=1, names=["forward_send"])
    fill_spans(batch, {"start_ns": [1, 2], "message": [0, 1 << 39]})
    made = Buffer()
    made.add_spans(SpanBlock(0, 1, tuple(batch.names), span_columns(batch), {}, Reading(0, 0)), size=100)
    store, manifest = Store(tmp_path), Manifest(write=1)
    store.write({KEY: made}, {}, manifest)
    store.accept(manifest)

    (table,) = store.read(store.parts(KEY, "spans"), 1, 1)

    assert table["message"].to_pylist() == [0, 1 << 39]


def test_a_history_outlives_its_traces_and_is_merged_into_few_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1, 80):
        write(store, number, number, number + 1)  # each step is in two writes
    old = time.time() - 1_000
    for path in tmp_path.glob("**/*.parquet"):
        os.utime(path, (old, old))

    expired = store.expire(max_age_seconds=500, max_bytes=1 << 40, max_history_seconds=2_000)

    rows = history.read(store.history(store.history_parts(KEY)))
    files = [path.name.split("-")[0] for path in tmp_path.glob("**/*.parquet")]
    assert expired.attempts == []
    assert set(files) == {"history", "merged"}
    assert len(files) <= 2 * history_files.MERGE_FILES
    assert rows["step"].tolist() == list(range(1, 81))
    assert rows["ranks"].tolist() == [1, *[2] * 78, 1]
    assert store.expire(max_age_seconds=500, max_bytes=1 << 40, max_history_seconds=500).attempts == [KEY]


def test_a_write_that_merged_and_did_not_end_leaves_the_history_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1, history_files.MERGE_FILES + 1):
        write(store, number, number)
    merging = history_files.MERGE_FILES + 1
    store.write({KEY: buffer(merging)}, {}, Manifest(write=merging))
    (tmp_path / "manifest.json").write_text(f'{{"write": {merging - 1}, "stored": 10}}')

    reopened = Store(tmp_path)

    rows = history.read(reopened.history(reopened.history_parts(KEY)))
    assert rows["step"].tolist() == list(range(1, merging))
    assert rows["ranks"].tolist() == [1] * (merging - 1)
