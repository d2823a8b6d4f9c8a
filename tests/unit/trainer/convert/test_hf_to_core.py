"""There and back, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, UnavailableError, UsageError
from megatronapp.trainer import checkpoint_folder, safetensors_folder
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.convert import core_to_hf, hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.safetensors_folder import TensorFolder
from megatronapp.trainer.saved_model import SavedModel
from megatronapp.trainer.torch_dist import StoredWeights
from tests.support.hugging_face import (
    CONFIGS,
    GPT2,
    LETTERS,
    LLAMA,
    random_tensors,
    write_model,
    write_sentencepiece,
    write_tokenizer,
)


def converted(tmp_path: Path, source: Path) -> Path:
    hf_to_core.convert(Options(source=source, target=tmp_path / "core"))
    return tmp_path / "core"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_comes_back_bitwise(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", CONFIGS[name])

    core_to_hf.convert(Options(source=converted(tmp_path, source), target=tmp_path / "back"))

    found, wanted = (load_file(str(each / "model.safetensors")) for each in (tmp_path / "back", source))
    assert found.keys() == wanted.keys()
    assert all(found[tensor].equal(wanted[tensor]) for tensor in wanted)
    files = {each.name for each in source.iterdir()}
    assert {each.name for each in (tmp_path / "back").iterdir()} == files
    for file in files - {"model.safetensors", "config.json"}:
        assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == CONFIGS[name]


def test_the_checkpoint_is_whole_and_knows_settings_and_tokenizer(tmp_path: Path) -> None:
    core = converted(tmp_path, write_model(tmp_path / "model"))

    folder = checkpoint_folder.find_complete(core)
    recipe = checkpoint_folder.read_recipe(folder)
    assert recipe.settings["padded_vocab_size"] == 33
    assert recipe.tokenizer["vocab_size"] == 32
    assert (folder / "tokenizer" / "tokenizer.json").is_file()
    assert sorted(each.name for each in core.iterdir()) == [
        "claim.json", "iter_0000000", "latest_checkpointed_iteration.txt"
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_weights_take_the_type_that_is_asked_for(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model")

    hf_to_core.convert(Options(source=source, target=tmp_path / "core", dtype=name))
    core_to_hf.convert(Options(source=tmp_path / "core", target=tmp_path / "back"))

    folder = checkpoint_folder.find_complete(tmp_path / "core")
    assert {each.properties.dtype for each in StoredWeights(folder).tensors.values()} == {dtype}
    assert checkpoint_folder.read_recipe(folder).settings[name]
    back = load_file(str(tmp_path / "back" / "model.safetensors"))
    assert all(back[key].equal(tensor.to(dtype)) for key, tensor in random_tensors(LLAMA).items())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == str(dtype).partition(".")[2]


def test_many_shards_are_read_and_written(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model")
    core = converted(tmp_path, source)
    core_to_hf.convert(Options(source=core, target=tmp_path / "back", max_shard_bytes=4000))

    hf_to_core.convert(Options(source=tmp_path / "back", target=tmp_path / "again"))

    files = {each.file for each in TensorFolder(tmp_path / "back").tensors.values()}
    assert len(files) > 3
    assert all(load_file(str(file)) for file in files)
    first, second = (StoredWeights(checkpoint_folder.find_complete(each)) for each in (core, tmp_path / "again"))
    assert first.tensors.keys() == second.tensors.keys()
    for key, stored in first.tensors.items():
        assert first.read(key, None, tuple(stored.size)).equal(second.read(key, None, tuple(stored.size)))


def test_older_files_of_gpt2_have_short_names_and_masks(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", GPT2)
    tensors = {name.removeprefix("transformer."): each for name, each in random_tensors(GPT2).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    save_file(tensors, str(source / "model.safetensors"))

    core_to_hf.convert(Options(source=converted(tmp_path, source), target=tmp_path / "back"))

    assert load_file(str(tmp_path / "back" / "model.safetensors")).keys() == random_tensors(GPT2).keys()


def test_a_sentencepiece_model_is_taken_where_nothing_else_is(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", {**LLAMA, "vocab_size": 64})
    (source / "tokenizer.json").unlink()
    write_sentencepiece(source)

    core = converted(tmp_path, source)
    core_to_hf.convert(Options(source=core, target=tmp_path / "back"))

    saved = SavedModel.find(core, ParallelConfig())
    assert saved.tokenizer.tokenize("hello")[0] == saved.tokenizer.bos
    assert saved.config.data.tokenizer_type == "Llama2Tokenizer"
    assert (tmp_path / "back" / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()


@pytest.mark.parametrize(
    ("name", "kind", "extra"), [("megatron-bert", "BertWordPieceCase", 0), ("t5", "SentencePieceTokenizer", 10)]
)
def test_a_model_of_masked_words_takes_the_tokenizer_of_its_folder(
    name: str, kind: str, extra: int, tmp_path: Path
) -> None:
    core = converted(tmp_path, write_model(tmp_path / "model", CONFIGS[name]))

    settings = checkpoint_folder.read_recipe(checkpoint_folder.find_complete(core)).settings
    assert (settings["tokenizer_type"], settings["vocab_extra_ids"]) == (kind, extra)


# ---- refused


@pytest.mark.parametrize(
    ("name", "file", "options", "says"),
    [
        ("megatron-bert", "vocab.txt", {}, "holds no vocab.txt: give --vocab-file"),
        ("t5", "spiece.model", {}, "holds no spiece.model: give --tokenizer-model"),
        ("t5", "", {"tokenizer": {"tokenizer_type": "NullTokenizer"}}, "needs --tokenizer-type BertWordPiece"),
        (
            "megatron-bert",
            "",
            {"tokenizer": {"tokenizer_type": "NullTokenizer"}},
            "needs --tokenizer-type BertWordPiece",
        ),
        ("mt5", "", {"pipeline": 2}, "can't be cut into pipeline stages"),
    ],
)
def test_what_a_model_of_masked_words_can_not_do_is_refused(
    name: str, file: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model", CONFIGS[name])
    if file:
        (source / file).unlink()

    with pytest.raises(UsageError, match=says) as error:
        hf_to_core.convert(Options(source=source, target=tmp_path / "core", **options))

    assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in random_tensors(LLAMA).items() if key != name}


def break_missing_tensor(folder: Path) -> None:
    save_file(without("model.layers.1.mlp.up_proj.weight"), str(folder / "model.safetensors"))


def break_shape(folder: Path) -> None:
    save_file(without("lm_head.weight") | {"lm_head.weight": torch.ones(33, 8)}, str(folder / "model.safetensors"))


def break_foreign_tensor(folder: Path) -> None:
    save_file(random_tensors(LLAMA) | {"model.vision.weight": torch.ones(2)}, str(folder / "model.safetensors"))


def break_type(folder: Path) -> None:
    wrong = {"model.norm.weight": torch.ones(16, dtype=torch.int8)}
    save_file(random_tensors(LLAMA) | wrong, str(folder / "model.safetensors"))


def break_torn(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def break_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / safetensors_folder.INDEX).write_text(json.dumps(index))


def break_index_elsewhere(folder: Path) -> None:
    (folder / safetensors_folder.INDEX).write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))


def break_index(folder: Path) -> None:
    (folder / safetensors_folder.INDEX).write_text("[1]")


def break_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def break_layers(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2**31 - 1}))


def break_number(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**LLAMA, "rms_norm_eps": 10**400}))


def break_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_vocabulary(folder: Path) -> None:
    write_tokenizer(folder, LETTERS | {f"<{number}>": number for number in range(32, 40)})


def break_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("how", "kind", "named"),
    [
        (break_missing_tensor, DataError, "model.layers.1.mlp.up_proj.weight"),
        (break_shape, DataError, r"lm_head.weight has the shape \(33, 8\)"),
        (break_foreign_tensor, DataError, "model.vision.weight"),
        (break_type, DataError, "of type I8"),
        (break_torn, DataError, "model.safetensors is torn"),
        (break_missing_shard, NotFoundError, "model-00001-of-00002.safetensors is missing"),
        (break_index_elsewhere, DataError, "does not lie in this folder"),
        (break_index, DataError, "no weight_map"),
        (break_pickled, NotFoundError, "save the model as safetensors"),
        (break_config, DataError, "config.json is not readable"),
        (break_layers, DataError, "no file holds model.layers.2."),
        (break_number, DataError, "rms_norm_eps is 10+, not a number"),
        (break_no_config, NotFoundError, "holds no config.json"),
        (break_vocabulary, DataError, "40 tokens, but the model only 33 rows"),
        (break_no_tokenizer, UsageError, "--tokenizer-model"),
        (break_tokenizer, MegatronAppError, "no tokenizer.json"),
    ],
)
def test_a_broken_model_is_refused_with_one_line(
    how: object, kind: type[MegatronAppError], named: str, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model")
    assert callable(how)
    how(source)

    with pytest.raises(kind, match=named) as error:
        converted(tmp_path, source)

    assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_layout_that_the_model_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model")

    with pytest.raises(UsageError, match="3"):
        hf_to_core.convert(Options(source=source, target=tmp_path / "core", tensor=3))
    with pytest.raises(UsageError, match="3 pipeline stages"):
        hf_to_core.convert(Options(source=source, target=tmp_path / "core", pipeline=3))

    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "mine").touch()

    with pytest.raises(UsageError, match="is there already"):
        converted(tmp_path, source)

    assert [each.name for each in (tmp_path / "core").iterdir()] == ["mine"]


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_model(tmp_path / "model")
    core = converted(tmp_path, source)
    reads = iter(range(3))

    def fails(*_: object) -> torch.Tensor:
        next(reads, None)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(TensorFolder, "read", fails)
        with pytest.raises(UnavailableError, match="No space left"):
            hf_to_core.convert(Options(source=source, target=tmp_path / "second"))
    with monkeypatch.context() as patched:
        patched.setattr(StoredWeights, "read", fails)
        with pytest.raises(UnavailableError, match="No space left"):
            core_to_hf.convert(Options(source=core, target=tmp_path / "third"))

    assert sorted(each.name for each in tmp_path.iterdir()) == ["core", "model"]
