from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.detector.formats import kineto, kineto_steps
from tests.unit.detector.formats.kineto_files import STEP_US, TraceFile, training_step


def job(folder, ranks, steps=3, slower=(), other_work=()):
    for rank in range(ranks):
        file = TraceFile(rank, ranks)
        for step in range(steps):
            kernels = 2 if rank in other_work else 1
            training_step(file, step, step * STEP_US, slower=1.3 if rank in slower else 1.0, kernels=kernels)
        file.write(folder / f"rank{rank}.json")
    return kineto.read_traces(kineto.find_traces(folder))


def test_a_steps_parts_add_up_to_it(tmp_path):
    found = kineto_steps.breakdown(job(tmp_path, 1, steps=2))

    assert found is not None
    # 500 us of passes and 50 of the optimizer; the all-reduce begins 100 before the passes end, and lasts 200. A step
    # is 1000 long; the last one ends with its last kernel, at 650.
    assert found.computing == pytest.approx(550e-6)
    assert found.exposed_communication == pytest.approx(100e-6)
    assert found.communication == pytest.approx(200e-6)
    assert found.idle == pytest.approx(((1000 - 650) / 2) * 1e-6)
    assert [(each.name, each.calls) for each in found.operators] == [
        ("aten::mm", 2.0),
        ("nccl:allreduce", 1.0),
        ("aten::_foreach_add_", 1.0),
    ]


def test_ranks_that_launch_the_same_kernels_are_peers(tmp_path):
    traces = job(tmp_path, 4, other_work={1, 3})

    tables = list(kineto_steps.step_tables(traces))

    assert tables[0].ranks.pipeline.tolist() == [0, 1, 0, 1]
    assert tables[0].ranks.data.tolist() == [0, 0, 1, 1]
    assert kineto_steps.without_peers(traces) == ()


def test_a_rank_of_its_own_work_has_no_peer(tmp_path):
    assert kineto_steps.without_peers(job(tmp_path, 3, other_work={1})) == (1,)


def test_a_rank_that_did_not_record_a_step_is_missing_from_it(tmp_path):
    for rank, steps in ((0, 2), (1, 3)):
        file = TraceFile(rank, 2)
        for step in range(steps):
            training_step(file, step, step * STEP_US)
        file.write(tmp_path / f"rank{rank}.json")

    tables = list(kineto_steps.step_tables(kineto.read_traces(kineto.find_traces(tmp_path))))

    assert [table.missing for table in tables] == [(), (), (0,)]


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20)


@given(intervals)
def test_the_union_counts_each_moment_once(spans):
    spans = sorted((begin, begin + length) for begin, length in spans)
    start = np.array([begin for begin, _ in spans], float)
    end = np.array([stop for _, stop in spans], float)

    covered = {moment for begin, stop in spans for moment in range(begin, stop)}

    assert kineto_steps.union_seconds(start, end) == len(covered)
