"""Flight-recorder dumps of two real hangs with known faulty ranks."""

import json
import pickle
import shutil

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze, main

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


@pytest.mark.parametrize("scenario", TRUTH)
@pytest.mark.parametrize("absent", range(16))
def test_a_rank_that_left_no_dump_accuses_nobody_and_hides_nobody(traces, tmp_path, scenario, absent):
    ranks, cause = TRUTH[scenario]
    shutil.copytree(traces / scenario, tmp_path / "dumps", copy_function=shutil.copyfile)
    (tmp_path / "dumps" / f"_dump_{absent}").unlink()

    findings = analyze(tmp_path / "dumps").findings

    paged = {(finding.ranks, finding.cause) for finding in findings if finding.page}
    assert paged == {((rank,), cause) for rank in ranks - {absent}}
    others = [(f.ranks, f.cause, f.confidence) for f in findings if not f.page]
    assert all(other == ((absent,), Cause.UNKNOWN, 0.5) for other in others)
    assert others or absent not in ranks


@pytest.mark.parametrize("scenario", TRUTH)
@pytest.mark.parametrize("entries", [10, 20, 40])
def test_rings_that_are_cut_accuse_nobody_who_is_innocent(traces, tmp_path, scenario, entries):
    ranks, cause = TRUTH[scenario]
    for dump in (traces / scenario).glob("_dump_*"):
        content = pickle.loads(dump.read_bytes())  # noqa: S301
        content["entries"] = content["entries"][-entries:]
        (tmp_path / dump.name).write_bytes(pickle.dumps(content))

    paged = [finding for finding in analyze(tmp_path).findings if finding.page]

    assert paged
    assert {rank for finding in paged for rank in finding.ranks} in (ranks, set())
    assert {finding.cause for finding in paged if finding.ranks} <= {cause}


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
    file = shared_data / "dlrover_xpu_timer" / scrape
    samples = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]

    report = analyze(file)

    assert (report.job.ranks, report.job.records) == (8, len(samples))
    assert {rank for finding in report.findings for rank in finding.ranks} == hung
    assert all((f.kind, f.cause, f.page) == (Kind.HANG, Cause.UNKNOWN, True) for f in report.findings)


def test_a_broken_scrape_is_an_error(tmp_path):
    (tmp_path / "scrape").write_text('XPU_TIMER_COMMON_HANG{rank="0" 1\n')

    with pytest.raises(DataError, match="Prometheus text"):
        analyze(tmp_path / "scrape")


def test_a_folder_of_scenarios_is_judged_one_by_one(traces, capsys):
    assert main(["hang", str(traces), "--json"]) == 0

    scenarios = json.loads(capsys.readouterr().out)["scenarios"]
    assert {name: set(report["hang"]["ranks"]) for name, report in scenarios.items()} == {
        name: ranks for name, (ranks, _) in TRUTH.items()
    }
    assert {name: report["hang"]["side"] for name, report in scenarios.items()} == {
        "gpu_error_1st": "device",
        "lock_gil_2nd": "host",
    }


@pytest.mark.parametrize("scenario", TRUTH)
def test_without_the_dumps_of_the_faulty_ranks_their_side_is_unknown(traces, tmp_path, scenario):
    ranks, _ = TRUTH[scenario]
    shutil.copytree(traces / scenario, tmp_path / "dumps", copy_function=shutil.copyfile)
    for rank in ranks:
        (tmp_path / "dumps" / f"_dump_{rank}").unlink()

    hang = analyze(tmp_path / "dumps").hang

    assert hang is not None
    assert {culprit.rank: culprit.side for culprit in hang.culprits} == dict.fromkeys(ranks, "unknown")
