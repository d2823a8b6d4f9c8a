"""A run's jobs in several processes, and what is told where a run is ended early."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bench.scale import cli, main, pool, rounds, work
from bench.scale.hangs import Stall, Stop
from bench.scale.scenarios import MODELS, Trial
from bench.scale.scoring import Outcome
from bench.scale.suites import Options
from bench.scale.work import Result, Unit

FLAGS = ["recall", "--ranks", "8", "--percent", "20", "--step-seconds", "1", "--only", "slow", "--trials", "3"]


def without_times(played: tuple[Unit, Result]) -> tuple[Unit, Result]:
    unit, result = played
    return unit, replace(result, engine_seconds=0, generation_seconds=0) if isinstance(result, Outcome) else result


@pytest.mark.long
def test_jobs_in_several_processes_are_those_in_one() -> None:
    units: list[Unit] = [*(Trial("faults", "slow", 8, 1.0, seed, 0, size=1.2) for seed in range(2)), Stop(8, 1)]

    one, several = ({str(without_times(played)) for played in work.play(units, count)} for count in (1, 2))

    assert one == several
    assert len(one) == 3


def test_the_longest_jobs_are_played_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "played", lambda _: Outcome())
    short, long = (Trial("healthy", "quiet", 8, 1.0, 1, steps) for steps in (5, 50))
    troubled = Trial("faults", "silent", 8, 1.0, 1, 0)

    assert [unit for unit, _ in work.play([short, troubled, long], 1)] == [troubled, long, short]


def test_what_is_not_through_in_time_is_left_out() -> None:
    assert list(work.play([Stop(8, 1)], 1, seconds=0)) == []
    assert list(work.play([Stop(8, 1), Stop(8, 2)], 2, seconds=0)) == []


def test_a_run_that_is_ended_tells_of_the_jobs_that_were_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing = work.played

    def ended_in_the_second(unit: Unit) -> Result:
        if isinstance(unit, Trial) and unit.seed == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return playing(unit)

    monkeypatch.setattr(work, "played", ended_in_the_second)
    file = tmp_path / "jobs"

    assert main([*FLAGS, "--processes", "1", "--json", str(file)]) == cli.ENDED_EARLY

    text = capsys.readouterr().out
    assert "of 3 jobs were played" in text
    assert f"{len(pool.of_files([file]))} of 3 jobs were played" in text
    assert "3 of 3 jobs" not in text


def test_jobs_that_were_played_are_told_with_the_others_and_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing, seeds = work.played, list[int]()

    def noted(unit: Unit) -> Result:
        assert isinstance(unit, Trial)
        seeds.append(unit.seed)
        return playing(unit)

    monkeypatch.setattr(work, "played", noted)
    first, second = tmp_path / "first", tmp_path / "second"
    main([*FLAGS[:-1], "1", "--processes", "1", "--json", str(first)])
    capsys.readouterr()

    assert main([*FLAGS, "--processes", "1", "--played", str(first), "--json", str(second)]) == 0

    text = capsys.readouterr().out
    assert "3 of 3 jobs were played" in text
    assert "3 seeds of 0 … 2" in text
    assert seeds == [0, 1, 2]
    assert len(pool.of_files([first, second])) == 3


def test_a_round_has_every_kind_of_job_and_no_job_twice() -> None:
    units = list(rounds.whole(Options(round=4)))

    trials = [unit for unit in units if isinstance(unit, Trial)]
    assert len(set(units)) == len(units)
    assert {trial.scenario for trial in trials if trial.suite == "healthy"} >= set(MODELS)
    days = sum(
        t.world * t.steps * t.step_seconds / 86_400 for t in trials if t.suite == "healthy" and t.step_seconds >= 15
    )
    assert days >= rounds.GPU_DAYS
    for seconds in rounds.SHORT_STEPS:
        rank_steps = sum(t.world * t.steps for t in trials if t.suite == "healthy" and t.step_seconds == seconds)
        assert rank_steps >= rounds.RANK_STEPS
    healthy = [(trial.model, trial.seed) for trial in trials if trial.suite == "healthy"]
    assert len(set(healthy)) == len(healthy)  # the same seed draws the same noise whatever a step takes
    assert {trial.world for trial in trials if trial.suite == "recall"} == {64, 1024, 4096}
    assert sum(isinstance(unit, Stop) for unit in units) == rounds.HANGS


def test_jobs_of_a_file_are_those_that_were_played() -> None:
    whole = pool.Pool()
    whole.add(Stop(8, 1), Stall(6.0, 1.0, right_rank=True))

    assert "8 ranks: found 1 of 1" in whole.text()
