"""Traces of PyTorch's profiler: real ones by others, and a job with a slow rank."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from megatronapp.core.findings import Kind
from megatronapp.detector.analyze import analyze
from tests.unit.detector.formats.kineto_files import STEP_US, TraceFile, training_step

RANKS, STEPS, SLOW_FROM = 4, 40, 15


def write_job(folder, slow=None):
    noise = np.random.default_rng(0)
    for rank in range(RANKS):
        file = TraceFile(rank, RANKS)
        for step in range(STEPS):
            slower = 1.2 if rank == slow and step >= SLOW_FROM else 1.0
            training_step(file, step, step * STEP_US, slower=slower * noise.normal(1.0, 0.003))
        file.write(folder / f"rank{rank}.json.gz")


def test_a_slow_rank_is_named(tmp_path):
    write_job(tmp_path, slow=2)

    report = analyze(tmp_path)

    paged = [finding for finding in report.findings if finding.page]
    assert [(finding.kind, finding.ranks) for finding in paged] == [(Kind.SLOW_GPU, (2,))]
    assert paged[0].since_step in range(SLOW_FROM - 1, SLOW_FROM + 3)
    assert report.job.without_peers == ()


def test_nobody_is_named_where_nobody_is_slow(tmp_path):
    write_job(tmp_path)

    assert analyze(tmp_path).findings == ()


def test_a_single_rank_is_taken_apart_and_said_not_to_be_judged(tmp_path):
    file = TraceFile(0, 8)
    training_step(file, 1, 0.0)

    report = analyze(file.write(tmp_path / "t.json"))

    assert report.job.without_peers == (0,)
    assert report.job.slowdown_ratio is None
    assert "not judged       rank 0" in report.as_text()


@pytest.mark.parametrize(
    "name",
    [
        "amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        "critical_path/cuda_event_sync/event_sync_trace.json.gz",
        "critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz",
        pytest.param("df_index_resolver/df_index_resolver.json.gz", marks=pytest.mark.long),
        "mixed_files/rank_non_gpu.json.gz",
        "nccl_parser_config/nccl_data.json.gz",
        "negative_queue_length_values_check/rank0.json.gz",
        "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        pytest.param("trace_diff/control/control.json.gz", marks=pytest.mark.long),
        pytest.param("trace_diff/test/test.json.gz", marks=pytest.mark.long),
        "trace_filter",
    ],
)
def test_real_traces_are_read_whole_and_accuse_nobody(shared_data, name):
    path = shared_data / "hta_tests" / name
    files = [path] if path.is_file() else sorted(path.glob("*.gz"))

    report = analyze(path)

    job, parts = report.job, report.job.breakdown
    assert job.records == sum(len(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]) for file in files)
    assert job.ranks == len(files)
    assert not any(finding.page for finding in report.findings)
    assert parts is not None
    assert parts.computing > 0
    assert min(parts.exposed_communication, parts.idle) >= 0
