"""Flight-recorder dumps of two real hangs with known faulty ranks."""

import pickle
import shutil

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze

TRUTH = {
    "gpu_error_1st": ({12, 14}, Cause.COMPUTE),
    "lock_gil_2nd": ({10, 15}, Cause.HOST_CPU),
}


@pytest.fixture
def traces(shared_data):
    return shared_data / "nvrx_flight_recorder" / "fr_traces"


@pytest.mark.parametrize("scenario", TRUTH)
def test_every_faulty_rank_is_named_with_its_side_and_no_other(traces, scenario):
    ranks, cause = TRUTH[scenario]

    findings = analyze(traces / scenario).findings

    assert {rank for finding in findings for rank in finding.ranks} == ranks
    assert {(finding.kind, finding.cause, finding.page) for finding in findings} == {(Kind.HANG, cause, True)}


def test_a_faulty_rank_that_left_no_dump_is_named_without_a_cause(traces, tmp_path):
    shutil.copytree(traces / "lock_gil_2nd", tmp_path / "dumps")
    (tmp_path / "dumps" / "_dump_10").chmod(0o600)
    (tmp_path / "dumps" / "_dump_10").unlink()

    causes = {finding.ranks: finding.cause for finding in analyze(tmp_path / "dumps").findings}

    assert causes == {(10,): Cause.UNKNOWN, (15,): Cause.HOST_CPU}


def test_json_has_no_infinity(traces):
    report = analyze(traces / "lock_gil_2nd").as_json()

    assert report["findings"][0]["cost_ratio"] is None
    assert report["job"]["ranks"] == 16


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    class Harmful:
        def __reduce__(self):
            return (print, ("it ran",))

    (tmp_path / "_dump_0").write_bytes(pickle.dumps(Harmful()))

    with pytest.raises(DataError, match=r"refers to builtins\.print"):
        analyze(tmp_path)
    assert "it ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scrape", "hung"),
    [
        ("normal/xpu_timer_metric_0", set()),
        ("xpu_timer_metric_single", set()),
        ("hang/xpu_timer_metric_some", {0, 2, 5}),
        ("hang/xpu_timer_metric_all", set(range(8))),
    ],
)
def test_ranks_that_xpu_timer_flags_are_passed_on(shared_data, scrape, hung):
    report = analyze(shared_data / "dlrover_xpu_timer" / scrape)

    assert report.job.ranks == 8
    assert {rank for finding in report.findings for rank in finding.ranks} == hung
    assert all((f.kind, f.cause, f.page) == (Kind.HANG, Cause.UNKNOWN, True) for f in report.findings)


def test_a_broken_scrape_is_an_error(tmp_path):
    (tmp_path / "scrape").write_text('XPU_TIMER_COMMON_HANG{rank="0" 1\n')

    with pytest.raises(DataError, match="Prometheus text"):
        analyze(tmp_path / "scrape")
