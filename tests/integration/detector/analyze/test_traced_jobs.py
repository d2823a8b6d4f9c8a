"""Trace folders as `--trace-dir` writes them, judged without a collector."""

import json

import pytest

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.core.findings import Kind
from megatronapp.core.trace import file
from megatronapp.detector.analyze import analyze, main
from tests.support.simulated import Fault, Job, Layout

JOB = "team/simulated"


def write(folder, job, steps, name=JOB):
    """What the job's ranks would have written."""
    files = {}
    for rank in range(job.layout.world):
        path = file.path_for(folder, name, job.attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        files[rank] = path.open("wb")
    began = job.clock_ns
    for each in job.hellos():
        each.message.hello.identity.CopyFrom(each.identity)
        each.message.hello.placement.host_unix_ns = began
        file.write(files[each.identity.rank], each.message)
    for step in range(1, steps + 1):
        before = job.clock_ns
        for each in job.step(step):
            each.message.summary.start_ns = before - began
            file.write(files[each.identity.rank], each.message)
    for each in files.values():
        each.close()


def test_a_slow_rank_is_named(tmp_path):
    job = Job(Layout(pp=2, dp=4), faults=(Fault("compute", (5,), from_step=40, size=1.2),))
    write(tmp_path, job, 70)

    report = analyze(tmp_path)

    assert (report.job.name, report.job.ranks, report.job.steps) == (JOB, 8, 70)
    paged = [finding for finding in report.findings if finding.page]
    assert [(finding.kind, finding.ranks) for finding in paged] == [(Kind.SLOW_GPU, (5,))]
    assert paged[0].since_step == pytest.approx(40, abs=2)
    assert paged[0].effect_ratio == pytest.approx(1.2, rel=0.05)
    assert report.job.slowdown_by_step["60"] > report.job.slowdown_by_step["20"]


def test_a_clean_job_pages_nobody(tmp_path):
    write(tmp_path, Job(Layout(pp=2, dp=2)), 60)

    assert not [finding for finding in analyze(tmp_path / "team" / "simulated").findings if finding.page]


def test_the_end_of_a_killed_ranks_file_is_forgiven(tmp_path):
    write(tmp_path, Job(Layout(pp=1, dp=2)), 30)
    path = file.path_for(tmp_path, JOB, 1, 0)
    path.write_bytes(path.read_bytes()[:-20])

    assert analyze(tmp_path).job.steps == 30


def test_damaged_files_are_named(tmp_path):
    write(tmp_path, Job(Layout(pp=1, dp=2)), 5)
    path = file.path_for(tmp_path, JOB, 1, 1)
    path.write_bytes(b"\x05\xff\xff\xff\xff\xff" + path.read_bytes())

    with pytest.raises(DataError, match=r"rank-1\.pb"):
        analyze(tmp_path)


def test_a_folder_of_several_jobs_asks_for_one(tmp_path):
    write(tmp_path, Job(Layout(pp=1, dp=1)), 2, "team/a")
    write(tmp_path, Job(Layout(pp=1, dp=1)), 2, "team/b")

    with pytest.raises(UsageError, match="2 jobs"):
        analyze(tmp_path)


@pytest.mark.parametrize("make", [lambda p: p, lambda p: p / "nowhere"])
def test_nothing_to_analyse_is_an_error(tmp_path, make):
    with pytest.raises(NotFoundError):
        analyze(make(tmp_path))


def test_errors_are_one_line_and_an_exit_code(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")

    assert main([str(tmp_path / "notes.txt")]) == 2
    assert main([str(tmp_path), "--json"]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 2
    assert "known are trace folders" in captured.err


def test_json_of_a_trace_folder_can_be_parsed(tmp_path, capsys):
    write(tmp_path, Job(Layout(pp=2, dp=2)), 25)

    assert main([str(tmp_path), "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["job"]["format"] == "megatronapp trace"
