"""One attack in several processes, or on several machines."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import attack
from bench._attack_share import Share
from bench._attack_tally import Record, Tally, summed
from tests.attack.targets import TARGETS


@pytest.mark.parametrize(("inputs", "parts"), [(0, 1), (1, 3), (100, 32), (31, 32), (1000, 7)])
def test_the_parts_are_the_whole_and_no_input_is_in_two(inputs: int, parts: int) -> None:
    whole = range(5, 5 + inputs)

    executed = [seed for number in range(1, parts + 1) for seed in Share(number, parts).part(whole)]

    assert executed == list(whole)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/0", "-1/4"])
def test_what_is_no_share_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no share"):
        Share.parse(text)


def test_tallies_add_up() -> None:
    ours = Tally("files", 4, 3, Counter(a=1), Counter(read=2, refused=1))
    theirs = Tally.of_json(Tally("files", 2, 2, Counter(a=1, b=1), Counter(read=2)).as_json())

    sums = summed([ours, Tally("tokens", 1, 1), theirs])

    assert sums == [Tally("files", 6, 5, Counter(a=2, b=1), Counter(read=4, refused=1)), Tally("tokens", 1, 1)]
    assert ours.executions == 3


def test_what_a_process_has_done_so_far_is_read_of_its_record(tmp_path: Path) -> None:
    record = Record(tmp_path / "1.json")
    assert record.read() == ([], False)

    record.write([Tally("files", 4, 3, Counter(a=1))], done=False)
    assert record.read() == ([Tally("files", 4, 3, Counter(a=1))], False)

    record.write([Tally("files", 4, 4)], done=True)
    assert record.read() == ([Tally("files", 4, 4)], True)


@pytest.mark.long
def test_processes_execute_all_inputs_between_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--executions", "21", "--seed", "7", "--targets", "tokens", "--failures", str(tmp_path / "failures")]

    assert attack.main([*arguments, "--processes", "2", "--json", str(tmp_path / "lines")]) == 0

    assert "21 of 21 inputs, 0 harms" in capfd.readouterr().out
    told = [json.loads(text) for text in (tmp_path / "lines").read_text().splitlines()]
    assert sorted((each["share"], each["planned"], each["executions"], each["harms"]) for each in told) == [
        ("1/1", 21, 21, 0),
        ("1/2", 10, 10, 0),
        ("2/2", 11, 11, 0),
    ]
    assert told[-1]["share"] == "1/1"
    assert {each["seed"] for each in told} == {7}
    assert sum(told[-1]["targets"][0]["seen"].values()) == 21


@pytest.mark.long
@pytest.mark.timeout(120)
def test_processes_that_are_ended_early_tell_what_they_have_and_no_harm(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    command = [sys.executable, "-m", "bench.attack", "--executions", "100000000", "--seed", "7", "--targets", "tokens"]
    command += ["--processes", "2", "--json", str(lines), "--failures", str(tmp_path / "failures")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        _until_it_has_done_some(process)
        os.killpg(process.pid, signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)

    assert process.returncode == attack.ENDED_EARLY, printed
    whole = json.loads(lines.read_text().splitlines()[-1])
    assert (whole["share"], whole["planned"], whole["harms"]) == ("1/1", 100_000_000, 0)
    assert 0 < whole["executions"] < whole["planned"]
    assert f"{whole['executions']:,} of 100,000,000 inputs, 0 harms" in printed


def _until_it_has_done_some(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        if " inputs" in text and " 0 of" not in text:
            return


class Idle:
    """A target whose inputs do nothing; the first of them does what is given."""

    name, at_once = "idle", 1

    def __init__(self, first: Callable[[], object]) -> None:
        self._first: Callable[[], object] | None = first

    async def start(self, folder: Path) -> None: ...

    async def stop(self) -> None: ...

    async def check(self) -> None: ...

    async def execute(self, chance: object) -> None:
        first, self._first = self._first, None
        if first:
            first()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_inputs_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setitem(TARGETS, "idle", (lambda: Idle(lambda: signal.raise_signal(number)), 1.0))
    before = signal.getsignal(number)
    arguments = ["--executions", "20", "--failures", str(tmp_path / "failures")]

    assert attack.main([*arguments, "--seed", "1", "--json", str(tmp_path / "lines"), "--targets", "idle", "tokens"])

    told = json.loads((tmp_path / "lines").read_text())
    assert [(each["name"], each["executions"]) for each in told["targets"]] == [("idle", 1), ("tokens", 0)]
    assert "idle               1 of 18 inputs, 0 harms" in capfd.readouterr().out
    assert signal.getsignal(number) is before


def test_a_share_ends_with_the_process_that_wanted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 2))
    monkeypatch.setitem(TARGETS, "idle", (lambda: Idle(lambda: None), 1.0))
    record = Record(tmp_path / "record")

    ended = attack.main(["--executions", "20", "--targets", "idle", "--record", str(record.path)])

    assert ended == attack.ENDED_EARLY
    assert record.read() == ([Tally("idle", 20, 0)], False)


def test_a_share_tells_how_far_it_is_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, told = Record(tmp_path / "record"), list[tuple[list[Tally], bool]]()
    monkeypatch.setattr(attack, "PROGRESS_SECONDS", -1.0)
    monkeypatch.setattr(Record, "write", lambda _, tallies, *, done: told.append((tallies, done)))
    monkeypatch.setitem(TARGETS, "idle", (lambda: Idle(lambda: None), 1.0))

    assert attack.main(["--executions", "3", "--targets", "idle", "--record", str(record.path)]) == 0

    assert [(tallies[0].executions, done) for tallies, done in told] == [(1, False), (2, False), (3, False), (3, True)]


def test_a_process_that_does_not_come_to_its_end_is_a_harm_and_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import os\nprint('goodbye', flush=True)\nos._exit(3)\n")

    assert attack.main(["--executions", "2", "--targets", "tokens", "--processes", "2"]) == 1

    printed = capfd.readouterr().out
    assert "1/2 ended with 3" in printed
    assert "goodbye" in printed
    assert "tokens             0 of 2 inputs" in printed


def test_a_target_whose_program_is_not_there_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    targets = attack._targets_here()

    assert "redis" not in targets
    assert "files" in targets
    assert capfd.readouterr().out == "redis is left out: there is no redis-server here\n"
