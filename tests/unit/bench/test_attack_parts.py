"""One attack in several processes, or on several machines."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from bench import attack
from bench._attack_parts import Share, Tally


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
    tally = Tally("files", 3, Counter(a=1), Counter(read=2, refused=1))

    tally.add(Tally.of_json(Tally("files", 2, Counter(a=1, b=1), Counter(read=2)).as_json()))

    assert tally == Tally("files", 5, Counter(a=2, b=1), Counter(read=4, refused=1))


@pytest.mark.long
def test_processes_execute_all_inputs_between_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--executions", "21", "--seed", "7", "--targets", "tokens", "--failures", str(tmp_path / "failures")]

    assert attack.main([*arguments, "--processes", "2"]) == 0

    assert "tokens            21 inputs in all, 0 harms" in capfd.readouterr().out


def test_a_process_that_does_not_come_to_its_end_is_a_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)\n")

    assert attack.main(["--executions", "2", "--targets", "tokens", "--processes", "2"]) == 1

    assert "1/2 ended with 3" in capfd.readouterr().out


def test_a_target_whose_program_is_not_there_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    targets = attack._targets_here()

    assert "redis" not in targets
    assert "files" in targets
    assert capfd.readouterr().out == "redis is left out: there is no redis-server here\n"
