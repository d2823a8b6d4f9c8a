"""--use-checkpoint-args without a checkpoint says so; without the flag nothing is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.trainer.checkpoint_flags import completed
from megatronapp.trainer.environment import Environment

HERE = Environment(node="n")


def test_without_the_flag_nothing_changes() -> None:
    assert completed(["--load", "/nowhere", "--bf16"], HERE) == ["--load", "/nowhere", "--bf16"]


def test_a_checkpoint_must_be_named() -> None:
    with pytest.raises(UsageError, match="--use-checkpoint-args needs --load"):
        completed(["--use-checkpoint-args"], HERE)


def test_a_folder_without_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint of the trainer"):
        completed(["--use-checkpoint-args", "--load", str(tmp_path)], HERE)
