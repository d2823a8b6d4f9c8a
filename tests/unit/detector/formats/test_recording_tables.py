import numpy as np
import pytest

from megatronapp.detector.formats import bytedance
from megatronapp.detector.formats.recording_tables import step_tables
from tests.unit.detector.formats.bytedance_files import write
from tests.unit.detector.whatif.recordings import Layout, record

LAYOUT = Layout(stages=4, chunks=1, microbatches=6, replicas=2, steps=3)


@pytest.fixture
def trace(tmp_path):
    return bytedance.read(write(tmp_path, record(LAYOUT)))


def of(table, rank, operation):
    rows = table.rows
    return np.flatnonzero((rows.rank == rank) & (rows.operation == table.operations.index(operation)))


def test_there_is_one_table_per_step_with_all_workers(trace):
    tables = list(step_tables(trace))

    assert [table.step for table in tables] == [7, 8, 9]
    assert tables[0].ranks.rank.tolist() == list(range(8))
    assert tables[0].ranks.pipeline.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert tables[0].ranks.data.tolist() == [0, 1] * 4
    assert tables[0].missing == ()
    assert tables[0].microbatches == 6


def test_rows_sum_up_the_operations_of_a_worker(trace):
    table = next(step_tables(trace))

    forward = of(table, 3, "forward")

    assert table.rows.count[forward].tolist() == [6]
    assert table.rows.duration[forward] == pytest.approx([6.0])
    assert table.rows.duration_max[forward] == pytest.approx([1.0])


def test_messages_name_their_peer_and_collectives_their_communicator(trace):
    table = next(step_tables(trace))

    assert table.rows.peer[of(table, 2, "forward_send")].tolist() == [4]
    assert table.rows.peer[of(table, 2, "forward_recv")].tolist() == [0]
    scatter = table.communicators[table.rows.communicator[of(table, 2, "reduce_scatter")][0]]
    assert (scatter.kind, scatter.ranks) == ("dp", (2, 3))
    kinds = {
        table.communicators[i].kind: table.communicators[i].ranks
        for i in table.rows.communicator[of(table, 0, "all_reduce")]
    }
    assert kinds["embd"] == (0, 6)
    assert kinds["world"] == tuple(range(8))


def test_each_microbatch_is_told_apart_on_every_stage(trace):
    detail = next(step_tables(trace)).detail

    assert detail.compute.shape == (4, 12)
    assert detail.compute == pytest.approx(np.full((4, 12), 3.0))
    assert np.bincount(detail.replica).tolist() == [6, 6]


def test_a_worker_without_operations_is_missing_from_the_step(tmp_path):
    recording = record(LAYOUT)
    worker = [i for i, operation in enumerate(recording.operations) if operation.key.stage == 1]
    recording.start[worker, 1, 0] = recording.duration[worker, 1, 0] = np.nan

    tables = list(step_tables(bytedance.read(write(tmp_path, recording))))

    assert [table.missing for table in tables] == [(), (2,), ()]
    assert np.isnan(tables[1].duration[2])
