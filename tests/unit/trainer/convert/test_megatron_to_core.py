"""Checkpoints of Megatron-LM: what they hold arrives, and what they may not hold is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatronapp.core.errors import DataError, MegatronAppError, UsageError
from megatronapp.trainer import checkpoint_folder
from megatronapp.trainer.convert import hf_to_core, main, megatron_to_core
from megatronapp.trainer.convert.arguments import Options
from tests.support.hugging_face import GPT2, LLAMA, write_model
from tests.support.megatron_checkpoints import tensors, write_distributed, write_rank_files

MODELS = {
    "llama": {**LLAMA, "vocab_size": 34, "num_hidden_layers": 4},
    "gpt2": {**GPT2, "vocab_size": 34},
}


@pytest.fixture(params=MODELS)
def core(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made(request.param, tmp_path)


def made(name: str, tmp_path: Path) -> Path:
    source = write_model(tmp_path / "model", MODELS[name])
    hf_to_core.convert(Options(source=source, target=tmp_path / "core"))
    return tmp_path / "core"


def converted(source: Path, tmp_path: Path) -> Path:
    megatron_to_core.convert(Options(source=source, target=tmp_path / "again"))
    return tmp_path / "again"


def check_same(found: Path, wanted: Path) -> None:
    ours, theirs = tensors(found), tensors(wanted)
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []
    recipes = [checkpoint_folder.read_recipe(checkpoint_folder.find_complete(each)) for each in (found, wanted)]
    assert recipes[0].settings == recipes[1].settings


@pytest.mark.parametrize(
    "layout",
    [{}, {"tensor": 2}, {"tensor": 2, "stages": 2}, {"legacy": True}, {"tensor": 2, "stages": 2, "legacy": True}],
)
def test_files_of_ranks_are_put_together(core: Path, layout: dict[str, Any], tmp_path: Path) -> None:
    source = write_rank_files(tmp_path / "source", core, **layout)

    check_same(converted(source, tmp_path), core)


def test_chunks_of_the_interleaved_schedule_are_put_in_order(tmp_path: Path) -> None:
    core = made("llama", tmp_path)
    source = write_rank_files(tmp_path / "source", core, stages=2, chunks=2)

    check_same(converted(source, tmp_path), core)


@pytest.mark.parametrize("stacked", [True, False])
def test_the_distributed_format_is_read(core: Path, stacked: bool, tmp_path: Path) -> None:
    source = write_distributed(tmp_path / "source", core, stacked=stacked)

    check_same(converted(source, tmp_path), core)


def test_the_command_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rank_files(tmp_path / "source", made("llama", tmp_path))

    code = main.main(["megatron-to-core", str(source), str(tmp_path / "again"), "--print-checkpoint-structure"])

    said = capsys.readouterr().out
    assert code == 0
    assert "decoder.layers.mlp.linear_fc2.weight of layer 3  16x24  float32" in said
    assert "--use-checkpoint-args --finetune" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 8}, "experts"),
        ({"quick_geglu": True}, "quick GEGLU"),
        ({"softmax_type": "off-by-one"}, "softmax_type"),
        ({"padded_vocab_size": None}, "padded_vocab_size"),
        ({"num_layers": 8}, "linear_qkv.layer_norm_weight of layer 4 is missing"),
        ({"ffn_hidden_size": 32}, "has the shapes"),
        ({"qk_layernorm": True}, "q_layernorm.weight of layer 0 is missing"),
        ({"untie_embeddings_and_output_weights": False, "normalization": "LayerNorm"}, "is missing"),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "/nowhere"}, "give --tokenizer-type"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    core = made("llama", tmp_path)
    source = write_rank_files(tmp_path / "source", core)
    file = source / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    vars(content["args"]).update(changes)
    torch.save(content, file)

    with pytest.raises(MegatronAppError, match=said):
        converted(source, tmp_path)

    assert not (tmp_path / "again").exists()


def test_tensors_that_nothing_asks_for_are_named(tmp_path: Path) -> None:
    source = write_rank_files(tmp_path / "source", made("llama", tmp_path))
    file = source / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    content["model"]["lm_head.dense.weight"] = torch.ones(2)
    torch.save(content, file)

    with pytest.raises(DataError, match=r"lm_head\.dense\.weight"):
        converted(source, tmp_path)


@pytest.mark.parametrize(
    ("gone", "said"), [("mp_rank_01_000", "lacks mp_rank_01_000"), ("mp_rank_01_001", "mp_rank_01_001")]
)
def test_a_missing_shard_is_named(gone: str, said: str, tmp_path: Path) -> None:
    source = write_rank_files(tmp_path / "source", made("llama", tmp_path), tensor=2, stages=2)
    shutil.rmtree(source / "iter_0000007" / gone)

    with pytest.raises(DataError, match=said):
        converted(source, tmp_path)


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


def test_a_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_rank_files(tmp_path / "source", made("llama", tmp_path))
    torch.save({"args": Attack()}, source / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt")

    with pytest.raises(DataError, match=r"mp_rank_00/model_optim_rng\.pt can't be read"):
        converted(source, tmp_path)

    assert not (tmp_path / "attacked").exists()


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    source = write_rank_files(tmp_path / "source", made("llama", tmp_path))
    file = source / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:-1000])

    with pytest.raises(DataError, match=r"model_optim_rng\.pt can't be read"):
        converted(source, tmp_path)


def test_the_trainers_own_checkpoints_need_no_conversion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to convert"):
        converted(made("llama", tmp_path), tmp_path)
