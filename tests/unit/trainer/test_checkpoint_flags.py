"""--use-checkpoint-args without a checkpoint says so; without the flag nothing is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.trainer.checkpoint_flags import completed
from megatronapp.trainer.convert import hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.environment import Environment
from tests.support.hugging_face import write_model

HERE = Environment(node="n")


def test_without_the_flag_nothing_changes() -> None:
    assert completed(["--load", "/nowhere", "--bf16"], HERE) == ["--load", "/nowhere", "--bf16"]


def test_a_checkpoint_must_be_named() -> None:
    with pytest.raises(UsageError, match="--use-checkpoint-args needs --load"):
        completed(["--use-checkpoint-args"], HERE)


def test_a_folder_without_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint of the trainer"):
        completed(["--use-checkpoint-args", "--load", str(tmp_path)], HERE)


def test_a_setting_of_nought_is_taken_over(tmp_path: Path) -> None:
    hf_to_core.convert(Options(source=write_model(tmp_path / "model"), target=tmp_path / "core"))

    flags = completed(["--use-checkpoint-args", "--load", str(tmp_path / "core")], HERE)

    assert flags[flags.index("--attention-dropout") + 1] == "0.0"
    assert flags[flags.index("--num-layers") + 1] == "2"
    assert "--num-experts" not in flags
