"""`megatronapp generate` and `--serve` as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.generate.main import main
from megatronapp.trainer.main import main as trainer
from tests.support.forked import run_forked

REQUEST = '{"id": "one", "prompts": ["He"], "max_new_tokens": 3, "sampling": {"temperature": 0}}'
TEXT_OF_TWO = ["--prompt", "He said", "--prompt", "the fox", "--max-new-tokens", "6", "--ignore-end-of-document"]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def _in_rank(program: Callable[[Sequence[str]], int], flags: Sequence[str], given: str, folder: Path) -> Ended:
    """For a rank: the program with standard streams of its own."""
    (folder / "in").write_text(given)
    for stream, (name, mode) in enumerate((("in", os.O_RDONLY), ("out", os.O_RDWR), ("err", os.O_RDWR))):
        os.dup2(os.open(folder / name, mode | os.O_CREAT), stream)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w"), open(2, "w")  # noqa: SIM115
    code = program(flags)
    sys.stdout.flush()
    sys.stderr.flush()
    return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())


def typed(program: Callable[[Sequence[str]], int], *flags: object, given: str = "") -> Ended:
    """`program` with these flags, as a process would run it."""
    with TemporaryDirectory() as folder:
        return run_forked(1, _in_rank, program, [str(flag) for flag in flags], given, Path(folder))[0]


@pytest.mark.long
def test_one_process_and_two_ranks_write_the_same_text(folder: Path) -> None:
    alone = typed(main, "--checkpoint", folder, *TEXT_OF_TWO)
    given = ["--checkpoint", str(folder), "--prompts-file", "-", *TEXT_OF_TWO[4:]]
    split = subprocess.run(
        [sys.executable, "-m", "megatronapp.trainer.generate", *given, "--tensor-model-parallel-size", "2"],
        input="He said\nthe fox\n",
        capture_output=True,
        text=True,
        check=True,
    )

    assert (alone.code, alone.err) == (0, "")
    assert split.stdout == alone.out
    assert "--- 0\nHe said" in alone.out
    assert "--- 1\nthe fox" in alone.out


def test_the_prompt_comes_first_and_its_text_follows(folder: Path) -> None:
    flags = ["--checkpoint", folder, "--prompt", "He said", "--max-new-tokens", "4", "--seed", "3"]

    plain, events = typed(main, *flags).out, typed(main, *flags, "--json").events

    text = next(event["text"] for event in events if event["type"] == "row_finished")
    assert plain == f"He said{text}\n"
    assert events[0]["type"] == "started"
    assert events[-1] == {"type": "finished", "request": "", "reason": "done", "message": ""}


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--prompt", "a"], 2, "--checkpoint"),
        (["--checkpoint", "gone", "--prompt", "a"], 1, "gone: there is no such folder"),
        (["--checkpoint", "{empty}", "--prompt", "a"], 1, "holds no checkpoint of the trainer"),
        (["--checkpoint", "{folder}"], 2, "no prompts: give --prompt or --prompts-file"),
        (["--checkpoint", "{folder}", "--prompts-file", "gone.txt"], 1, "gone.txt: there is no such file"),
        (["--checkpoint", "{folder}", "--prompts-file", "{broken}"], 1, "each line is an object with `prompt`"),
        (["--checkpoint", "{folder}", "--prompt", "a", "--top-p", "7"], 2, "top_p 7.0 must be above 0"),
        (["--checkpoint", "{folder}", "--prompt", "a", "--logits"], 2, "need --json"),
        (["--checkpoint", "{folder}", "--prompt", "a", "--tokens", "7"], 2, "`megatronapp generate --help`"),
        (
            ["--checkpoint", "{folder}", "--prompt", "a", "--pipeline-model-parallel-size", "0"],
            2,
            "0 is too small: the least is 1",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    flags: list[str], code: int, says: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "prompts.jsonl"
    broken.write_text('{"text": "a"}\n')
    names = {"folder": folder, "empty": tmp_path, "broken": broken}

    returned = main([flag.format(**names) for flag in flags])

    said = capfd.readouterr()
    assert (returned, said.out) == (code, "")
    assert says in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-new-tokens", "64"], "prompt 0 has 1 tokens and asks for 64 more: this model takes 64 in all"),
        (["--max-positions", "65"], "--max-positions 65: the model has embeddings for 64"),
        (
            ["--pipeline-model-parallel-size", "3"],
            "--num-layers 4 is no multiple of 3 pipeline stages: change it, --pipeline-model-parallel-size, or give "
            "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
        ),
        (["--stop-token", "257"], "stop token 257: ids of this model lie from 0 to 256"),
    ],
)
def test_what_the_model_does_not_take_is_said_once(flags: list[str], says: str, folder: Path) -> None:
    ended = typed(main, "--checkpoint", folder, "--prompt", "a", *flags)

    assert (ended.code, ended.out, ended.errors) == (2, "", [f"error: {says}"])


def serve(flags: Sequence[str]) -> int:
    return trainer(["--serve", *flags])


def test_a_server_answers_lines_and_ends_with_them(folder: Path) -> None:
    ended = typed(serve, "--load", folder, given=f"{REQUEST}\nnonsense\n\n{REQUEST.replace('one', 'two')}")

    reasons = {event["request"]: event["reason"] for event in ended.events if event["type"] == "finished"}
    assert ended.code == 0
    assert reasons == {"one": "done", "two": "done", "": "refused"}


def test_a_server_that_nobody_could_ask_says_so(folder: Path) -> None:
    ended = typed(serve, "--load", folder)

    assert (ended.code, ended.out) == (2, "")
    assert ended.errors[0].startswith("error: nobody asked: give requests on standard input")


def test_a_plugin_that_can_not_serve_is_named(folder: Path) -> None:
    ended = typed(serve, "--load", folder, "--require-plugins", "nonesuch")

    assert ended.code == 69
    assert "--require-plugins nonesuch: no plug-in of this name that can serve" in ended.errors[0]
