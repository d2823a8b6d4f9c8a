"""The analysis of two production jobs that others recorded, with and without slow workers planted on top."""

import json

import pytest

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze, main
from megatronapp.detector.formats import bytedance
from megatronapp.detector.offline import recorded_job
from megatronapp.detector.whatif.equalise import Equalised, slowdown
from tests.integration.detector.analyze.planting import paged_ranks, plant, ranks_of, with_equal_stages

JOBS = ("SE", "ST")


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "bytedance_straggler"


@pytest.fixture(scope="module")
def traces(folder):
    return {name: bytedance.read(folder / f"trace-{name}.parquet") for name in JOBS}


@pytest.fixture(scope="module")
def reports(folder):
    return {name: analyze(folder / f"trace-{name}.parquet") for name in JOBS}


@pytest.fixture(scope="module")
def authors(folder):
    return {name: json.loads((folder / f"result-{name}.json").read_text()) for name in JOBS}


@pytest.mark.parametrize("name", JOBS)
def test_slowdown_is_what_the_authors_found(reports, authors, name):
    job, expected = reports[name].job, authors[name]

    assert job.slowdown_ratio == pytest.approx(expected["blocking_slowdown"], rel=1e-5)
    assert job.delay_ratio == pytest.approx(expected["launch_slowdown"], rel=1e-3)
    assert job.slowdown_by_step == pytest.approx(expected["blocking_step_slowdown"], rel=1e-5)
    assert job.slowdown_by_replica == pytest.approx(expected["blocking_decompose_by_dp_rank"], rel=1e-5)
    assert job.slowdown_by_stage == pytest.approx(expected["blocking_decompose_by_stage"], rel=1e-5)
    assert job.slowdown_by_operation == pytest.approx(expected["blocking_decompose_by_optype"], rel=1e-5)


@pytest.mark.parametrize("name", JOBS)
def test_each_steps_slowdown_is_what_the_authors_found(traces, authors, name):
    result = slowdown(traces[name].recording)

    for breakdown, label in (
        (result.by_replica, "dp_rank"),
        (result.by_stage, "stage"),
        (result.by_operation, "optype"),
    ):
        per_step = authors[name][f"blocking_decompose_by_{label}_per_step"]
        for column, step in enumerate(traces[name].recording.steps):
            mine = {str(key): breakdown.step_ratio[row, column] for row, key in enumerate(breakdown.keys)}
            assert mine == pytest.approx(per_step[str(step)], rel=1e-5)


@pytest.mark.parametrize(("name", "slowest"), [("SE", [(1, 8), (1, 27)]), ("ST", [(3, 1)])])
def test_the_slowest_workers_alone_slow_the_job_by_what_the_authors_found(traces, folder, name, slowest):
    published = json.loads((folder / f"mw-{name}.json").read_text())
    equalised = Equalised(traces[name].recording)

    seconds = equalised.keeping(equalised.of_workers(slowest))

    assert seconds.mean() == pytest.approx(published["tadd"], rel=1e-5)
    assert equalised.equalised_seconds.mean() == pytest.approx(published["tideal"], rel=1e-5)


def test_where_stages_are_equal_a_finding_tells_the_published_cost_of_its_worker(traces):
    slow = plant(with_equal_stages(traces["ST"]), [(3, 1)], 2.0)
    equalised = Equalised(slow.recording)
    published = equalised.keeping(equalised.of_workers([(3, 1)])).mean() / equalised.equalised_seconds.mean()

    (finding,) = [finding for finding in recorded_job(slow).findings if finding.page]

    assert finding.cost_ratio == pytest.approx(published, rel=1e-2)


def test_where_they_are_not_a_worker_of_a_long_stage_costs_no_more_than_it_is_slow(traces):
    slow = plant(traces["ST"], [(3, 1)], 1.2)

    (finding,) = [finding for finding in recorded_job(slow).findings if finding.page]

    assert 1.0 < finding.cost_ratio < 1.2


def test_replay_of_recorded_times_reproduces_the_recorded_steps(traces):
    result = slowdown(traces["ST"].recording)

    assert result.replayed_seconds == pytest.approx(result.recorded_seconds, rel=0.03)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_without_a_slow_worker_pages_nobody_and_accuses_no_gpu(reports, name):
    assert not any(finding.page for finding in reports[name].findings)
    assert {finding.kind for finding in reports[name].findings} == {Kind.IMBALANCE}


def test_unequal_sequences_are_named_as_the_main_cause(reports):
    assert [finding.cause for finding in reports["SE"].findings] == [Cause.SEQUENCE_LENGTH, Cause.STAGE]


def test_a_long_last_stage_is_named(reports, traces):
    (finding,) = reports["ST"].findings

    assert finding.cause is Cause.STAGE
    assert {(worker.dp, worker.pp) for worker in finding.workers} == {(0, 3), (1, 3)}
    assert finding.advice


@pytest.mark.parametrize(
    ("name", "workers", "effect", "from_index"),
    [
        ("SE", [(1, 31)], 1.1, 0),
        ("SE", [(1, 7)], 1.1, 25),
        ("SE", [(0, 3)], 1.3, 25),
        ("SE", [(0, 1), (1, 0)], 1.3, 0),
        ("ST", [(3, 1)], 1.1, 22),
        ("ST", [(0, 0)], 1.2, 0),
        ("ST", [(0, 1), (3, 0)], 1.2, 22),
    ],
)
def test_planted_slow_workers_are_found_and_nobody_else(traces, name, workers, effect, from_index):
    report = recorded_job(plant(traces[name], workers, effect, from_index))

    assert paged_ranks(report) == ranks_of(traces[name], workers)
    for finding in report.findings:
        if finding.page:
            assert (finding.kind, finding.cause) == (Kind.SLOW_GPU, Cause.COMPUTE)
            assert finding.effect_ratio == pytest.approx(effect, rel=0.03)
            assert finding.cost_ratio > 1.01


def test_json_has_the_job_and_the_findings(folder, capsys):
    assert main([str(folder / "trace-ST.parquet"), "--json"]) == 0

    output = json.loads(capsys.readouterr().out)
    assert output["job"]["slowdown_ratio"] == pytest.approx(1.1787, rel=1e-4)
    (finding,) = output["findings"]
    assert (finding["kind"], finding["cause"], finding["page"], finding["state"]) == (
        "imbalance",
        "stage",
        False,
        "open",
    )
    assert finding["ranks"] == [6, 7]
    assert finding["workers"] == [{"dp": 0, "pp": 3}, {"dp": 1, "pp": 3}]


def test_text_says_the_same_to_people(folder, capsys):
    assert main([str(folder / "trace-SE.parquet")]) == 0

    text = capsys.readouterr().out
    assert "1.537" in text
    assert "sequence_length" in text
    assert "PAGE" not in text
