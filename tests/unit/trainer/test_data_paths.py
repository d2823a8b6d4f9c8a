"""Where training, validation and test get their data."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.errors import MegatronAppError
from megatronapp.trainer import arguments, data_paths
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data_paths import Blend, shares

NEEDED = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3"
)


def data_of(flags: str) -> DataConfig:
    return arguments.parse(f"{NEEDED} {flags}".split())[0].data


def test_a_split_deals_out_one_blend() -> None:
    train, valid, test = shares(data_of("--data-path 1 a 3 b --split 80,20"))

    assert train.blend == valid.blend == Blend(("a", "b"), (1.0, 3.0))
    assert [(each.begin, each.end) for each in (train, valid, test)] == [(0, 0.8), (0.8, 1), (1, 1)]
    assert test.is_empty


def test_each_set_has_its_own() -> None:
    train, valid, test = shares(data_of("--train-data-path 1 a 3 b --test-data-path c"))

    assert train.blend == Blend(("a", "b"), (1.0, 3.0))
    assert test.blend == Blend(("c",))
    assert valid.is_empty
    assert (train.begin, train.end) == (0, 1)


def test_a_file_holds_what_data_path_takes(tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    file.write_text("0.5 a\n0.5 b\n")

    data = data_of(f"--data-args-path {file}")

    assert data.data_path == ("0.5", "a", "0.5", "b")
    assert data.data_args_path is None


def test_a_file_holds_what_each_set_takes(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"train": [0.5, "a", "0.5", "b"], "valid": "1 c 2 d"}')

    data = data_of(f"--per-split-data-args-path {file}")

    assert data_paths.by_set(data) == (("0.5", "a", "0.5", "b"), ("1", "c", "2", "d"), ())


@pytest.mark.parametrize("flag", ["--data-path", "--valid-data-path", "--per-split-data-args-path", "--mock-data"])
def test_flags_of_data_are_told_from_others(flag: str) -> None:
    assert data_paths.are_named_by(["--lr", "1", f"{flag}=a"])
    assert not data_paths.are_named_by(["--lr", "1", "--data-cache-path", "a"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--data-path a --data-args-path FILE", "--data-path and --data-args-path both say"),
        ("--data-path a --valid-data-path b", "both say what the data is: give one of them"),
        ("--train-data-path a --per-split-data-args-path FILE", "both say"),
        ("--train-data-path a --split 90,10", "leave --split out"),
        ("--data-args-path /nowhere", "/nowhere can't be read"),
        ("--data-args-path FILE", "no list of prefixes"),
        ("--per-split-data-args-path /nowhere", "there is no such file"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\x00")

    with pytest.raises(MegatronAppError, match=said):
        data_of(flags.replace("FILE", str(file)))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"training": ["a"]}', '{"train": 5}', '{"train": [["a"]]}'])
def test_a_file_of_another_shape_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(content)

    with pytest.raises(MegatronAppError, match=r"data\.json"):
        data_of(f"--per-split-data-args-path {file}")


@pytest.mark.parametrize("blend", ["-1 a 2 b", "nan a 1 b", "inf a 1 b", "0 a 0 b", "1 a b 1"])
def test_weights_that_are_none_are_refused(blend: str) -> None:
    with pytest.raises(MegatronAppError, match="--valid-data-path takes prefixes, or a weight before each"):
        shares(data_of(f"--valid-data-path {blend}"))
