"""Damage is found, and the file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.trainer import checkpoint_command, checkpoint_folder
from megatronapp.trainer.checkpoint_verify import faults
from megatronapp.trainer.convert import hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.torch_dist import METADATA, read_metadata
from tests.support.hugging_face import write_model

FC2 = "decoder.layers.mlp.linear_fc2.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    hf_to_core.convert(Options(source=write_model(tmp_path / "model"), target=tmp_path / "core"))
    return checkpoint_folder.find_complete(tmp_path / "core")


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def middle_of(checkpoint: Path, key: str) -> tuple[Path, int]:
    """A byte of the tensor's numbers."""
    place = next(place for index, place in read_metadata(checkpoint).storage_data.items() if index.fqn == key)
    file = checkpoint / place.relative_path
    archive = file.read_bytes()[place.offset : place.offset + place.length]
    return file, place.offset + archive.index(b"data/0") + 100


def test_a_whole_checkpoint_has_no_faults(checkpoint: Path) -> None:
    assert list(faults(checkpoint)) == []


def test_a_flipped_bit_is_found_and_named(checkpoint: Path) -> None:
    file, position = middle_of(checkpoint, FC2)
    flip(file, position)

    assert list(faults(checkpoint)) == [f"{file}: {FC2} is damaged: its checksum is wrong"]


@pytest.mark.parametrize("name", ["common.pt", METADATA, "recipe.json"])
def test_other_files_are_named_too(name: str, checkpoint: Path) -> None:
    file = checkpoint / name
    file.write_bytes(b"\x00" * file.stat().st_size)

    [found] = faults(checkpoint)

    assert str(file) in found


def test_a_missing_file_is_named(checkpoint: Path) -> None:
    (checkpoint / "common.pt").unlink()

    assert list(faults(checkpoint)) == [f"{checkpoint}: common.pt is missing"]


def test_the_command_says_what_it_found(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_command.main(["verify", str(checkpoint.parent)]) == 0
    assert capsys.readouterr().out == f"{checkpoint} is whole\n"

    file, position = middle_of(checkpoint, FC2)
    flip(file, position)

    assert checkpoint_command.main(["verify", str(checkpoint)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}: {FC2} is damaged")


def test_a_checkpoint_is_described(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_command.main(["inspect", "--tensors", str(checkpoint)]) == 0

    told = capsys.readouterr().out
    assert "optimizer   not stored" in told
    assert "--num-layers 2" in told
    assert "HuggingFaceTokenizer, 32 tokens" in told
    assert f"{FC2}  2x16x24  float32" in told


def test_a_layout_that_the_model_can_be_cut_into_needs_no_reshaping(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--target-pipeline-model-parallel-size", "2"]

    assert checkpoint_command.main(["reshape", str(checkpoint), *sizes]) == 0
    assert "loads so as it is" in capsys.readouterr().out
    assert checkpoint_command.main(["reshape", str(checkpoint), "--target-tensor-model-parallel-size", "3"]) == 2
    assert "3" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["sideways"], 2), (["verify", "/nowhere"], 1)])
def test_wrong_flags_and_folders_are_refused(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_command.main(argv) == code
    assert capsys.readouterr().err.startswith("error: ")
