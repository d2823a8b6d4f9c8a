"""Which checkpoints stay when older ones are removed, and which are torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.trainer.checkpoint_folder import COMPLETE, Claim, folder_name, prune, why_torn


def checkpoints(folder: Path, *steps: int, torn: tuple[int, ...] = ()) -> Claim:
    for step in steps:
        made = folder / folder_name(step)
        made.mkdir()
        if step not in torn:
            (made / COMPLETE).write_text(json.dumps({"files": {}}))
    return Claim(folder, "run", 1)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_stay(tmp_path: Path) -> None:
    prune(checkpoints(tmp_path, 1, 2, 3, 4), step=4, keep=2)

    assert left(tmp_path) == ["iter_0000003", "iter_0000004"]


def test_a_torn_checkpoint_is_not_counted_and_goes_when_it_is_old(tmp_path: Path) -> None:
    prune(checkpoints(tmp_path, 1, 2, 3, 4, torn=(1, 3)), step=4, keep=2)

    assert left(tmp_path) == ["iter_0000002", "iter_0000003", "iter_0000004"]


def test_later_ones_of_an_earlier_run_stay(tmp_path: Path) -> None:
    prune(checkpoints(tmp_path, 1, 2, 9), step=2, keep=1)

    assert left(tmp_path) == ["iter_0000002", "iter_0000009"]


@pytest.mark.parametrize("content", ['{"files": [[5, 1]]}', '{"files": 5}', "[]", "5", "{}"])
def test_what_does_not_say_which_files_there_are_is_torn(tmp_path: Path, content: str) -> None:
    (tmp_path / COMPLETE).write_text(content)

    assert why_torn(tmp_path) == f"{COMPLETE} is missing or unreadable"
