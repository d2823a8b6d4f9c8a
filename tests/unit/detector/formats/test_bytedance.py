import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.detector.formats import bytedance
from megatronapp.detector.whatif.equalise import slowdown
from tests.unit.detector.formats.bytedance_files import rows_of, write, write_rows
from tests.unit.detector.whatif.recordings import Layout, record

LAYOUT = Layout(stages=2, chunks=2, microbatches=4, replicas=3)


def noisy(layout=LAYOUT):
    generator = np.random.default_rng(3)
    return record(layout, scale=lambda key, shape: generator.uniform(0.8, 1.2, shape))


def test_what_is_written_is_read_back(tmp_path):
    recording = noisy()

    trace = bytedance.read(write(tmp_path, recording, vpp_size=2))

    assert {o.key for o in trace.recording.operations} == {o.key for o in recording.operations}
    assert trace.recording.steps.tolist() == recording.steps.tolist()
    assert trace.rank.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert slowdown(trace.recording).ratio == pytest.approx(slowdown(recording).ratio)


def test_rows_may_come_in_any_order_and_twice(tmp_path):
    rows = rows_of(noisy())
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    (tmp_path / "a").mkdir()

    straight = bytedance.read(write_rows(tmp_path, rows))
    mixed = bytedance.read(write_rows(tmp_path / "a", shuffled + rows[:50]))

    assert slowdown(mixed.recording).ratio == pytest.approx(slowdown(straight.recording).ratio, rel=1e-12)


def test_lost_rows_do_not_stop_the_analysis(tmp_path):
    rows = rows_of(noisy())
    kept = [row for i, row in enumerate(rows) if i % 11]

    whole, part = (
        slowdown(bytedance.read(write_rows(tmp_path, some, name)).recording)
        for some, name in ((rows, "whole"), (kept, "part"))
    )

    assert part.ratio == pytest.approx(whole.ratio, rel=0.05)


def test_ranks_of_a_worker_are_counted_by_tensor_and_sequence_size(tmp_path):
    trace = bytedance.read(write(tmp_path, noisy(), tp_size=2, dsp_size=2))

    assert trace.meta.ranks_per_worker == 4
    assert trace.rank.tolist() == [[0, 4, 8], [12, 16, 20]]


def replaced(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def test_a_missing_file_is_named(tmp_path):
    path = write(tmp_path, noisy())
    path.with_name("meta-T.yaml").unlink()

    with pytest.raises(NotFoundError, match=r"meta-T\.yaml.*parallel sizes"):
        bytedance.read(path)
    with pytest.raises(NotFoundError, match="not found"):
        bytedance.read(tmp_path / "trace-X.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trial_name: [", "YAML"),
        ("trial_name: T", "dp_size"),
        ("{trial_name: T, dp_size: 3, pp_size: 2, world_size: 7}", "world_size is not"),
        ("- a list", "meta-T"),
        ("{trial_name: T, dp_size: 0, pp_size: 2, world_size: 6}", "greater than 0"),
        ("{trial_name: T, dp_size: 2, pp_size: 2, world_size: 4}", "dp_rank 2"),
        (f"{{trial_name: T, dp_size: {10**9}, pp_size: {10**9}, world_size: {10**18}}}", "world_size is more than"),
    ],
)
def test_metadata_that_does_not_fit_is_an_error_that_says_why(tmp_path, text, message):
    path = write(tmp_path, noisy())
    path.with_name("meta-T.yaml").write_text(text)

    with pytest.raises(DataError, match=message):
        bytedance.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["seq_id"]), "column seq_id is missing"),
        (lambda t: t.slice(0, 0), "no operation"),
        (lambda t: t.set_column(6, "duration", pa.array(["x"] * len(t))), "else than numbers"),
        (lambda t: t.set_column(6, "duration", pa.array([float("nan")] * len(t))), "no time"),
        (lambda t: t.set_column(6, "duration", pa.array([-1.0] * len(t))), "negative"),
        (lambda t: t.set_column(4, "optype", pa.array(["teleport"] * len(t))), "teleport"),
        (lambda t: replaced(t, "mb_id", pa.array([2**40] * len(t))), "mb_id holds values"),
        (lambda t: replaced(t, "mc", pa.array([-2] * len(t))), "mc holds values"),
        (lambda t: replaced(t, "seq_id", pa.array([2**62] * len(t))), "seq_id 4611686018427387904 is more"),
        (lambda t: replaced(t, "optype", pa.array([b"\xff"] * len(t), pa.binary())), "not readable as Parquet"),
        (lambda t: t.set_column(3, "step", pa.nulls(len(t), pa.int64())), "column step has rows without"),
    ],
)
def test_a_table_that_is_not_of_the_format_is_an_error_that_says_why(tmp_path, change, message):
    path = write(tmp_path, noisy())
    pq.write_table(change(pq.read_table(path)), path)

    with pytest.raises(DataError, match=message):
        bytedance.read(path)


def test_a_table_that_is_nearly_empty_takes_no_memory(tmp_path):
    """Laid out by operation, step and replica, as many rows as here would take 2,000 times 2,000 places."""
    path = write(tmp_path, noisy())
    good = pq.read_table(path).slice(0, 1).to_pylist()[0]
    rows = [good | {"step": n, "seq_id": n, "start_ts": float(n)} for n in range(2_000)]
    pq.write_table(pa.Table.from_pylist(rows), path)

    with pytest.raises(DataError, match="nearly all of it is missing"):
        bytedance.read(path)


def test_a_broken_file_is_an_error(tmp_path):
    path = write(tmp_path, noisy())
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(DataError, match="not readable as Parquet"):
        bytedance.read(path)
