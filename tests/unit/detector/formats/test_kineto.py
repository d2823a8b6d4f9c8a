from __future__ import annotations

import gzip
import json

import pytest

from megatronapp.core.errors import DataError
from megatronapp.detector.formats import kineto
from tests.unit.detector.formats.kineto_files import STEP_US, TraceFile, training_step


def test_a_kernel_is_of_the_step_that_launched_it(tmp_path):
    file = TraceFile()
    file.step(4, 0.0)
    file.step(5, STEP_US)
    file.kernel("aten::mm", "gemm", launched=900.0, ts=1100.0, dur=50.0)

    trace = kineto.read(file.write(tmp_path / "t.json"))

    assert {step: len(work.start) for step, work in trace.steps.items()} == {4: 1, 5: 0}


def test_kernels_are_told_apart_by_who_launched_them(tmp_path):
    file = TraceFile(rank=3, world=8)
    training_step(file, 1, 0.0)
    file.add("gpu_memcpy", "Memcpy HtoD", 900.0, 10.0)

    trace = kineto.read(file.write(tmp_path / "t.json.gz"))

    assert (trace.rank, trace.world, trace.events, trace.on_device) == (3, 8, len(file.events), True)
    assert sorted(zip(trace.steps[1].operator, trace.steps[1].part, strict=True)) == [
        ("", kineto.COPY),
        ("aten::_foreach_add_", kineto.OPTIMIZER),
        ("aten::mm", kineto.BACKWARD),
        ("aten::mm", kineto.FORWARD),
        ("nccl:allreduce", kineto.COMMUNICATION),
    ]


def test_a_kernel_whose_launch_was_not_recorded_is_of_the_step_in_which_it_ran(tmp_path):
    file = TraceFile()
    file.step(7, 0.0)
    file.add("kernel", "gemm", 100.0, 10.0, correlation=99)

    assert len(kineto.read(file.write(tmp_path / "t.json")).steps[7].start) == 1


def test_a_trace_without_a_device_tells_the_outermost_operators(tmp_path):
    file = TraceFile()
    file.step(1, 0.0)
    file.add("cpu_op", "aten::linear", 100.0, 50.0)
    file.add("cpu_op", "aten::addmm", 110.0, 30.0)
    file.add("cpu_op", "aten::relu", 200.0, 10.0)

    trace = kineto.read(file.write(tmp_path / "t.json"))

    assert not trace.on_device
    assert trace.steps[1].operator == ("aten::linear", "aten::relu")


def test_a_trace_without_steps_is_one(tmp_path):
    file = TraceFile()
    file.kernel("aten::mm", "gemm", 10.0, 20.0, 30.0)

    trace = kineto.read(file.write(tmp_path / "t.json"))

    assert list(trace.steps) == [0]
    assert trace.seconds[0] == pytest.approx(40e-6)


def test_the_rank_is_taken_from_the_name_where_the_trace_does_not_tell_it(tmp_path):
    file = TraceFile()
    del file.header["distributedInfo"]
    file.step(1, 0.0)

    assert list(kineto.read_traces([file.write(tmp_path / "rank-5.Apr_03.pt.trace.json")])) == [5]


def test_two_files_of_one_rank_are_refused(tmp_path):
    files = [TraceFile(rank=1).write(tmp_path / name) for name in ("a.json", "b.json")]

    with pytest.raises(DataError, match="both of rank 1; put each run into a folder of its own"):
        kineto.read_traces(files)


@pytest.mark.parametrize(
    "content",
    [
        {"schemaVersion": 1},
        {"schemaVersion": 1, "traceEvents": [1]},
        {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "late"}]},
        {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]},
        {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": 5}]},
        {"schemaVersion": 1, "traceEvents": [], "distributedInfo": {"rank": "first"}},
        {"schemaVersion": 1, "traceEvents": [], "distributedInfo": 7},
    ],
)
def test_nonsense_is_one_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"t\.json"):
        kineto.read_traces([path])


def test_a_rank_beyond_any_job_is_refused(tmp_path):
    with pytest.raises(DataError, match="ranks count from 0"):
        kineto.read_traces([TraceFile(rank=1 << 40).write(tmp_path / "t.json")])


def test_what_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * (2 << 20)))

    with pytest.raises(DataError, match="unpacks to more than 1 MiB"):
        kineto.read(path)


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:30] + b"?" * 40 + data[70:]])
def test_a_damaged_archive_is_one_error(tmp_path, damage):
    path = TraceFile().write(tmp_path / "t.json.gz")
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(DataError, match=r"gzip|JSON"):
        kineto.read(path)


def test_other_json_is_none_of_kinetos(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"name": "iteration", "ph": "B", "rel_ts": 0}]))

    assert kineto.find_traces(tmp_path) == []


@pytest.mark.parametrize("time", ["ts", "dur"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, -1e300])
def test_times_that_no_clock_shows_are_refused_in_one_line(tmp_path, time, value):
    file = TraceFile()
    training_step(file, 1, 0.0)
    next(event for event in file.events if event["cat"] == "user_annotation")[time] = value

    with pytest.raises(DataError, match="can't be understood: an event begins at"):
        kineto.read(file.write(tmp_path / "t.json"))
