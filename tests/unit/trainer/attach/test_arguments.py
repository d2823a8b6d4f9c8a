"""What `megatronapp attach` takes, and what of it reaches the ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer.attach.arguments import decode, encode, parse


def test_the_command_is_left_as_it_was_typed() -> None:
    asked = parse(
        ["--trace", "--job", "team/run", "--", "torchrun", "--nproc-per-node", "2", "x.py", "--trace", "--", "y"]
    )

    assert asked.command == ["torchrun", "--nproc-per-node", "2", "x.py", "--trace", "--", "y"]
    assert asked.job == "team/run"
    assert asked.plugin_flags == ["--trace"]


def test_without_dashes_the_first_word_that_is_no_flag_begins_the_command() -> None:
    asked = parse(["--trace-interval", "3", "torchrun", "x.py", "--lr", "1"])

    assert asked.command == ["torchrun", "x.py", "--lr", "1"]
    assert asked.plugin_flags == ["--trace-interval", "3"]


def test_megascope_is_asked_for_by_the_trainers_flag() -> None:
    asked = parse(["--scope", "--", "x"])

    assert decode(encode(asked.plugin_flags)).scope


def test_the_ranks_read_what_the_command_was_given() -> None:
    asked = parse(["--trace", "--job=team/run", "--trace-granularity=base", "--", "x"])

    options = decode(encode(asked.plugin_flags))

    assert options.trace
    assert options.trace_granularity == "base"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "nothing to run"),
        (["--trace", "--"], "nothing to run"),
        (["--tarce", "--", "x"], "unrecognized arguments: --tarce"),
        (["--trace-interval", "0", "--", "x"], "must be at least 1"),
        (["--collector-address", "nowhere", "--", "x"], "host:port"),
        (["--fault-scenario", "missing.yaml", "--", "x"], "missing.yaml is no file"),
    ],
)
def test_wrong_flags_are_one_line(flags: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        parse(flags)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["{", "1", '["--no-such-flag"]'])
def test_a_variable_that_somebody_else_has_set_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MEGATRONAPP_ATTACH"):
        decode(text)


def test_the_command_loads_no_torch(tmp_path: Path) -> None:
    loads = "megatronapp.trainer.attach.launch, megatronapp.trainer.attach.arguments"
    program = f"import sys, {loads}; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
