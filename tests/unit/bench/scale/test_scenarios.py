"""What is run: seeds, plans, the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.scale import main, seeds, suites
from bench.scale.faults import What
from bench.scale.layout import Layout, of_world
from bench.scale.scenarios import FAULTS, INTERLEAVED, LAYOUTS, MODELS, Trial, layouts, plan
from bench.scale.suites import Options
from bench.scale.trials import run


def test_rounds_of_seeds_have_none_in_common() -> None:
    known = [set(seeds.seeds(1000, of_round)) for of_round in seeds.ROUNDS]

    assert len(set[int]().union(*known)) == 1000 * len(known)


def test_processes_that_share_a_round_have_no_seed_in_common() -> None:
    whole = seeds.seeds(20, 3)

    assert [*seeds.seeds(10, 3), *seeds.seeds(10, 3, first=10)] == list(whole)


@pytest.mark.parametrize("suite", [suites.healthy, suites.recall, suites.faults])
@pytest.mark.parametrize("of_round", [seeds.TUNING, seeds.RESULT_ROUND])
def test_every_suite_uses_the_seeds_that_were_asked_for(suite: object, of_round: int) -> None:
    trials: list[Trial] = list(suite(Options(round=of_round, first=7, trials=3)))  # type: ignore[operator]

    assert {trial.seed for trial in trials} <= set(seeds.seeds(1000, of_round, first=7))
    assert trials[0].seed == seeds.seeds(1, of_round, first=7)[0]


BEYOND = seeds.ROUNDS.stop


@pytest.mark.parametrize(("count", "of_round", "first"), [(10**7, 1, 0), (1, BEYOND, 0), (1, -1, 0), (1, 1, 10**6)])
def test_seeds_that_no_round_has_are_an_error(count: int, of_round: int, first: int) -> None:
    with pytest.raises(ValueError, match="seeds"):
        seeds.seeds(count, of_round, first)


@pytest.mark.parametrize("scenario", FAULTS)
@pytest.mark.parametrize("world", [8, 64])
def test_every_fault_has_a_plan_at_every_size(scenario: str, world: int) -> None:
    for seed in range(5):
        planned = plan(Trial("faults", scenario, world, 1.0, seed, 0))
        faults = planned.spec.faults
        assert faults
        assert all(0 <= rank < world for fault in faults for rank in fault.ranks)
        assert planned.steps > max(fault.from_step for fault in faults)
        readers = [rank for fault in faults if fault.what is What.DATA for rank in fault.ranks]
        assert all(planned.spec.layout.place(rank)[2] in (0, planned.spec.layout.pp - 1) for rank in readers)


def test_jobs_of_restarts_begin_anew_every_fifty_steps_and_others_once_or_not_at_all() -> None:
    def restarts(model: str) -> set[tuple[int, ...]]:
        return {plan(Trial("healthy", model, 64, 4.0, seed, 160, model)).spec.restarts for seed in range(20)}

    assert restarts("restarts") == {(51, 101, 151)}
    assert restarts("bursts") == {(), (80,)}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_simulated_and_scored(model: str) -> None:
    outcome = run(Trial("healthy", model, 64, 1.0, 1, 8, model))

    assert outcome.rank_steps == 8 * 64
    assert outcome.engine_seconds > 0


def test_a_trial_is_the_same_each_time() -> None:
    trial = Trial("faults", "slow", 16, 1.0, 3, 0, size=1.2)

    once, again = run(trial), run(trial)

    assert replace(once, engine_seconds=0, generation_seconds=0) == replace(
        again, engine_seconds=0, generation_seconds=0
    )


@pytest.mark.parametrize("world", [8, 64, 1024, 4096, 16_384])
def test_layouts_have_as_many_ranks_as_they_should(world: int) -> None:
    for kind in LAYOUTS:
        assert {layout.world for layout in layouts(world, kind=kind)} == {world}


def test_a_trial_takes_its_layout_from_those_of_its_kind() -> None:
    planned = [plan(Trial("faults", "link", 64, 1.0, seed, 0, layouts=INTERLEAVED)) for seed in range(20)]

    assert {each.spec.layout for each in planned} <= set(layouts(64, kind=INTERLEAVED))
    assert {each.spec.layout.vpp for each in planned} == {2}
    assert len({each.spec.layout for each in planned}) > 3


def test_groups_are_made_of_their_members() -> None:
    layout = Layout(pp=2, dp=4, tp=2, ep=2)

    for rank in range(layout.world):
        for kind, ranks in layout.groups(rank):
            assert rank in ranks
            assert all((kind, ranks) in layout.groups(other) for other in ranks)


def test_layouts_that_can_not_be_are_errors() -> None:
    with pytest.raises(ValueError, match="multiple"):
        of_world(10, 4)
    with pytest.raises(ValueError, match="expert"):
        Layout(dp=3, ep=2)
    with pytest.raises(ValueError, match="interleaved"):
        Layout(pp=4, vpp=2, microbatches=6)


def test_the_command_prints_a_table_and_writes_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"

    flags = ["--ranks", "8", "--trials", "1", "--percent", "20", "--step-seconds", "1", "--only", "slow"]
    main(["recall", *flags, "--processes", "1", "--json", str(file)])

    text = capsys.readouterr().out
    assert "seeds for tuning, from 0 on" in text
    assert "slow +20 %, 8 ranks" in text
    job, numbers = map(json.loads, file.read_text().splitlines())
    assert job["job"]["seed"] == 0
    assert (numbers["faults"], numbers["suite"]) == (1, "recall")
    assert len(numbers["recall"]) == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--ranks", "7"], "8 to 16,384"),
        (["--step-seconds", "0.01"], "0.1 to 60"),
        (["--only", "nonsense"], "no model or fault"),
        (["nonsense"], "no suite"),
        (["--result", "--round", "0"], "for tuning"),
        (["--result", "--round", "77"], "no round 77"),
        (["healthy", "--recording", "nowhere.npz"], "no recording"),
    ],
)
def test_what_can_not_be_run_is_refused_in_words(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(flags)

    assert reason in capsys.readouterr().err


def test_a_step_that_the_engine_fails_on_is_counted_and_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr("megatronapp.detector.judge.Judge.observe", fail)

    outcome = run(Trial("healthy", "quiet", 8, 1.0, 1, 5))

    assert outcome.errors == 5
    assert "step 1: the engine failed: KeyError('defect')" in outcome.strays
    assert outcome.rank_steps == 40
