"""MegaScan's traces: merged ones by its authors, and files of single ranks as its tracer writes them."""

import json

import numpy as np
import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze

PROFILES = ("data-1-pipeline-4-tensor-1-pp-aggregated.json", "data-1-pipeline-4-tensor-1-dpp-aggregated.json")
REPLICAS, ITERATIONS, MICROBATCHES = 4, 40, 4


def rank_rows(replica, generator, slow_from=None):
    """What the tracer writes for one rank of a job of data-parallel replicas, without a pipeline."""
    rows = []

    def add(name, phase, at, **fields):
        place = {"dp_rk": replica, "pp_rk": 0, "tp_rk": 0, "dev": 0, "g_rk": replica}
        rows.append({"name": name, "ph": phase, "rel_ts": round(at * 1e9), **place, **fields})

    for iteration in range(ITERATIONS):
        factor = 1.3 if slow_from is not None and iteration >= slow_from else 1.0
        add("iteration", "B", 0.0, pad_before=1000)
        now = 0.001
        for microbatch in range(MICROBATCHES):
            for name, seconds in (("forward", 0.02), ("backward", 0.04)):
                add(name, "B", now)
                now += seconds * factor * generator.normal(1, 0.003)
                add(name, "E", now, micro_batch_index=microbatch)
        add("optimizer", "B", now)
        add("optimizer", "E", now + 0.005)
        add("iteration", "E", now + 0.006, duration_wall=1, duration_cuda=1)
    return rows


def write(folder, slow=None):
    generator = np.random.default_rng(0)
    for replica in range(REPLICAS):
        rows = rank_rows(replica, generator, slow_from=25 if replica == slow else None)
        (folder / f"benchmark-data-{replica}-pipeline-0-tensor-0.json").write_text(json.dumps(rows, indent=2))


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_without_a_fault_pages_nobody(shared_data, name):
    report = analyze(shared_data / "megatronapp_profiling" / name)

    assert (report.job.ranks, report.job.steps) == (4, 20)
    assert not any(finding.page for finding in report.findings)
    assert [finding.cause for finding in report.findings] == [Cause.STAGE]


def test_a_slow_rank_is_named_from_the_ranks_files(tmp_path):
    write(tmp_path, slow=2)

    report = analyze(tmp_path)

    paged = [finding for finding in report.findings if finding.page]
    assert [(finding.kind, finding.ranks) for finding in paged] == [(Kind.SLOW_GPU, (2,))]
    assert paged[0].since_step == pytest.approx(26, abs=1)
    assert paged[0].effect_ratio == pytest.approx(1.3, rel=0.03)
    assert report.job.steps == ITERATIONS


def test_equal_ranks_are_not_accused(tmp_path):
    write(tmp_path)

    assert analyze(tmp_path).findings == ()


def test_lost_events_do_not_stop_the_analysis(tmp_path):
    write(tmp_path)
    path = tmp_path / "benchmark-data-1-pipeline-0-tensor-0.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([row for i, row in enumerate(rows) if i % 50 or row["name"] == "iteration"]))

    assert not any(finding.page for finding in analyze(tmp_path).findings)


def test_merged_files_of_complete_events_are_read(tmp_path):
    events = [{"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "DP1-PP0-TP1"}}]
    for iteration in range(3):
        begin = 1e6 * iteration
        events.append({"ph": "X", "name": "iteration", "pid": 5, "ts": begin, "dur": 9e5})
        events.append({"ph": "X", "name": "forward", "pid": 5, "ts": begin + 10, "dur": 2e5})
    (tmp_path / "merged.json").write_text(json.dumps(events))

    report = analyze(tmp_path / "merged.json")

    assert (report.job.ranks, report.job.steps) == (1, 3)
    assert report.job.step_seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"name": "forward"', "not readable as JSON"),
        ('{"kind": "other"}', "not a list of trace events"),
        ("[1, 2]", "not a list of trace events"),
        ('[{"ph": "B", "name": "forward"}]', "can't be understood"),
        ("[]", "holds no iteration"),
    ],
)
def test_other_json_is_an_error_that_says_why(tmp_path, content, message):
    (tmp_path / "trace.json").write_text(content)

    with pytest.raises(DataError, match=message):
        analyze(tmp_path / "trace.json")


@pytest.mark.parametrize("rank", [-1, 2**31, 10**400])
def test_a_rank_that_no_job_has_is_refused(tmp_path, rank):
    rows = [row | {"g_rk": rank} for row in rank_rows(0, np.random.default_rng(0))]
    (tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json").write_text(json.dumps(rows))

    with pytest.raises(DataError, match="ranks from"):
        analyze(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"ph": "B", "name": "iteration", "g_rk": 0, "rel_ts": 1e400}]'])
def test_a_file_that_is_hard_to_read_is_one_line(tmp_path, text):
    (tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json").write_text(text)

    with pytest.raises(DataError, match="benchmark-data-0") as refused:
        analyze(tmp_path)

    assert len(str(refused.value)) < 600
