"""Prompts of a file."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from megatronapp.core.errors import DataError
from megatronapp.trainer.generate.arguments import prompts_of


def test_each_line_is_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n')

    assert prompts_of(Namespace(prompt=["zero"], prompts_file=str(tmp_path / "p.jsonl"))) == ["zero", "one", "two"]


@pytest.mark.parametrize("line", ["[" * 100_000, '{"prompt": 1}', "{}", "[]", "9" * 5_000, '{"prompt": '], ids=range(6))
def test_what_is_no_prompt_is_one_error_that_names_the_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)

    with pytest.raises(DataError, match=r"p\.jsonl"):
        prompts_of(Namespace(prompt=[], prompts_file=str(tmp_path / "p.jsonl")))
