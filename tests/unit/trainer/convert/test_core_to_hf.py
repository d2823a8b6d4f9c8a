"""Checkpoints that can't be read are refused with one line, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.trainer import checkpoint_folder
from megatronapp.trainer.convert import core_to_hf, hf_to_core
from megatronapp.trainer.convert.arguments import Options
from tests.support.hugging_face import write_model


@pytest.fixture
def core(tmp_path: Path) -> Path:
    hf_to_core.convert(Options(source=write_model(tmp_path / "model"), target=tmp_path / "core"))
    return tmp_path / "core"


def rewrite_recipe(core: Path, **settings: object) -> None:
    file = checkpoint_folder.find_complete(core) / checkpoint_folder.RECIPE
    document = json.loads(file.read_text())
    document["settings"]["forward"] |= settings
    rewritten(file, json.dumps(document).encode())


def rewritten(file: Path, content: bytes) -> None:
    """In a checkpoint that stays complete by its sizes."""
    file.write_bytes(content)
    complete = file.with_name(checkpoint_folder.COMPLETE)
    document = json.loads(complete.read_text())
    document["files"][file.name] = len(content)
    complete.write_text(json.dumps(document))


def refusal(core: Path, kind: type[Exception], **options: object) -> str:
    target = core.with_name("back")
    with pytest.raises(kind) as error:
        core_to_hf.convert(Options(source=core, target=target, **options))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert sorted(each.name for each in core.parent.iterdir()) == ["core", "model"]
    return str(error.value)


def test_a_folder_without_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no checkpoint"):
        core_to_hf.convert(Options(source=tmp_path, target=tmp_path / "back"))


def test_a_torn_file_is_named(core: Path) -> None:
    file = next(checkpoint_folder.find_complete(core).glob("*.distcp"))
    rewritten(file, file.read_bytes()[:3000])

    assert file.name in refusal(core, DataError)


def test_weights_that_do_not_fit_the_recipe_are_named(core: Path) -> None:
    rewrite_recipe(core, add_qkv_bias=True)
    assert "q_norm" not in refusal(core, DataError, model_type="qwen2")

    rewrite_recipe(core, add_qkv_bias=False, num_layers=3)
    assert "decoder.layers" in refusal(core, DataError)

    rewrite_recipe(core, num_layers=2**31 - 1)
    assert "decoder.layers" in refusal(core, DataError)


def test_another_family_than_the_models_is_refused(core: Path) -> None:
    assert "is no qwen3" in refusal(core, UsageError, model_type="qwen3")
    assert "is no t5" in refusal(core, UsageError, model_type="t5")
    assert "'bloom'" in refusal(core, UsageError, model_type="bloom")


def test_a_family_of_the_same_settings_may_be_chosen(core: Path) -> None:
    core_to_hf.convert(Options(source=core, target=core.with_name("back"), model_type="mistral"))

    config = json.loads((core.with_name("back") / "config.json").read_text())
    assert config["model_type"] == "mistral"
    assert config["architectures"] == ["MistralForCausalLM"]
