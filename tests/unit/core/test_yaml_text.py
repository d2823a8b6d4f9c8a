"""Files that somebody else wrote: one error that says what is wrong, in no time, whatever they hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megatronapp.core.errors import ConfigError, DataError
from megatronapp.core.scenario import Scenario
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.core.yaml_text import load_yaml, load_yaml_documents
from megatronapp.detector.formats import bytedance

BOMB = "a: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
MERGES = "a: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
BAD = {
    "not UTF-8": b"kind: \xff\xfe",
    "a date that is none": b"kind: 2026-13-45",
    "a long number": b"kind: " + b"9" * 5_000,
    "an alias of itself": b"kind: &a [*a]",
    "an alias within itself": b"kind: &a {b: {c: *a}}",
    "an alias bomb": BOMB.encode(),
    "a bomb of merges": MERGES.encode(),
    "deep lists": b"[" * 20_000,
    "deep maps": b"{a: " * 20_000,
    "deep blocks": b"".join(b" " * n + b"a:\n" for n in range(700)),
    "a key that is a list": b"{[1]: 2}",
    "an unknown alias": b"kind: *nobody",
    "an object of Python's": b"!!python/object/apply:os.system [ls]",
    "too large": b"#" * (1 << 21),
}
READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "job": (TrainingJob.load, ConfigError),
    "scenario": (Scenario.load, ConfigError),
    "metadata": (bytedance.read_meta, DataError),
}


@pytest.mark.parametrize(("read", "error"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_that_is_hard_to_read_is_refused_at_once(
    tmp_path: Path, text: bytes, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(text)
    begin = time.monotonic()

    with pytest.raises(error, match=r"file\.yaml"):
        read(path)

    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not UTF-8", "is not UTF-8 at byte 6"),
        ("an alias of itself", "an alias within what it stands for"),
        ("an alias bomb", "more than 100000 values, aliases written out"),
        ("deep lists", "nested deeper than 64 levels"),
    ],
)
def test_it_is_said_what_is_hard_to_read(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_yaml(BAD[text], "job.yaml")


@pytest.mark.parametrize("text", ["a: [", "**bold** text", "a: b: c", "\ta: 1"])
def test_what_is_wrong_with_a_text_is_said_in_one_line_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^job\.yaml is not YAML that can be read: line 1, column \d+: [^\n]+$"):
        load_yaml(text, "job.yaml")


@pytest.mark.parametrize(("read", "error"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("text", ["# Title\n\n**bold**: see `this`\n\nmore: [x\n", "a: {b: c\n  d\n---\n", "\0\1"])
def test_what_is_no_yaml_is_refused_in_one_line(
    tmp_path: Path, text: str, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)

    with pytest.raises(error, match=r"README\.md") as caught:
        read(path)

    assert "\n" not in str(caught.value)


def test_prose_is_no_scenario(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("some words\n")

    with pytest.raises(ConfigError, match="holds no scenario: write `faults:`"):
        Scenario.load(path)


def test_aliases_of_one_document_are_unknown_in_the_next() -> None:
    with pytest.raises(ConfigError, match="undefined alias 'a'"):
        load_yaml_documents("x: &a [1]\n---\ny: *a\n", "file.yaml")


def test_what_people_write_is_read() -> None:
    text = "base: &base {a: 1, b: [1, 2]}\njob: {<<: *base, b: 3}\nother: *base\nday: 2026-11-22\n"

    read = load_yaml(text, "text")

    assert read["job"] == {"a": 1, "b": 3}
    assert read["other"] == {"a": 1, "b": [1, 2]}
    assert load_yaml(b"", "nothing") is None


def test_a_table_whose_text_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace-SE.parquet"
    (tmp_path / "meta-SE.yaml").write_text("{trial_name: SE, dp_size: 1, pp_size: 1, world_size: 1}")
    columns = {name: pa.array([0]) for name in bytedance.COLUMNS}
    columns["optype"] = pa.array([b"\xff\xfe"]).view(pa.string())
    pq.write_table(pa.table(columns), path)

    with pytest.raises(DataError, match="trace-SE"):
        bytedance.read(path)
