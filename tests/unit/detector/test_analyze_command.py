"""`megatronapp analyze` as it is typed, with Megatrace's own flags too."""

from __future__ import annotations

import json

import pytest

from megatronapp.detector.analyze import main
from tests.unit.detector.formats.kineto_files import TraceFile, training_step
from tests.unit.detector.formats.megatrace_files import Job, stand_still, write_logs
from tests.unit.detector.formats.megatrace_runs import Run, write_run

JOB = Job(tp=2, dp=2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    write_run(folder, Run(JOB, slow=lambda rank, share: 1.3 if rank == 1 else 1.0))
    return folder


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hung")
    programs = [JOB.program(rank, 4) for rank in range(JOB.world)]
    write_logs(folder, programs, stand_still(programs, {2: 23}, ahead=4))
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text("TP: 2\nPP: 1\nworld_size: 4\n")
    return file


def run(capsys, *flags):
    code = main([str(flag) for flag in flags])
    return code, capsys.readouterr()


def test_a_hang_is_told_with_who_where_and_why(capsys, hung):
    _, told = run(capsys, "hang", hung, "--json")

    report = json.loads(told.out)
    expected = {"ranks": [2], "communicator": "tp1.0", "operation": "AllReduce", "sequence": 17, "side": "host"}
    assert {name: report["hang"][name] for name in expected} == expected
    assert [finding["ranks"] for finding in report["findings"]] == [[2]]
    assert [finding["opened_step"] for finding in report["findings"]] == [None]


@pytest.mark.parametrize("words", [("slow",), ("parallel",), ()])
def test_a_slow_rank_is_told(capsys, slow, words):
    _, told = run(capsys, *words, slow, "--json")

    report = json.loads(told.out)
    assert [(finding["ranks"], finding["page"]) for finding in report["findings"]] == [([1], True)]
    assert report["job"]["parallel"]["bottlenecks"][0]["ranks"] == [1]
    assert report["hang"] is None


def test_what_is_slow_is_no_hang(capsys, slow):
    assert run(capsys, "hang", slow)[1].out.endswith("Nothing found.\n")


def test_megatraces_own_flags_are_understood(capsys, slow, config):
    for flags in (
        ("--log-path", slow, "--test-type", "parallel", "--config-path", config, "--verbose"),
        ("--logs-path", slow, "--test-type=parallel", "--config-path", config, "--verbose"),
    ):
        code, told = run(capsys, *flags)
        assert code == 0
        assert "TP 2, PP 1, DP 2 (by config.yaml)" in told.out
        assert "rank 1" in told.out.split("late in TP groups")[1].splitlines()[1]


def test_operators_tell_where_time_goes_and_no_verdict(capsys, tmp_path):
    file = TraceFile()
    for step in range(3):
        training_step(file, step, step * 1000.0)
    code, told = run(capsys, "operators", file.write(tmp_path / "t.json"))

    assert code == 0
    assert "exposed comm." in told.out
    assert "aten::mm" in told.out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give one PATH"),
        (("hang",), "Give a PATH behind it"),
        (("a", "b"), "give one PATH"),
        (("--unknown", "x"), "--unknown"),
        (("slow", "--test-type", "hang", "x"), "give one of them"),
        (("x", "--test-type", "fast"), "invalid choice"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(capsys, flags, says):
    code, told = run(capsys, *flags)

    assert (code, told.out) == (2, "")
    assert told.err.count("\n") == 1
    assert says in told.err


def test_what_a_source_does_not_tell_is_said_in_one_line(capsys, slow, tmp_path, config):
    trace = TraceFile().write(tmp_path / "t.json")
    for flags, says in (
        (("operators", slow), "has no operators"),
        (("parallel", trace), "does not tell who is late in which group"),
        ((trace, "--config", config), "for Megatrace's logs"),
    ):
        code, told = run(capsys, *flags)
        assert code == 2
        assert says in told.err
        assert told.err.count("\n") == 1
