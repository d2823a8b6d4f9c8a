"""What can be rebuilt of a checkpoint's folder alone. The weights are not looked at here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from megatronapp.core.errors import ConfigError, DataError, MegatronAppError, NotFoundError, UsageError
from megatronapp.trainer import arguments, checkpoint_folder
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.convert.core_to_hf import Checkpoint
from megatronapp.trainer.data import build_tokenizer
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.saved_model import SavedModel

EXAMPLES = Path(__file__).parents[3] / "examples" / "data"
FLAGS = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3 --position-embedding-type rope --rotary-base 500000 --global-batch-size 16 --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1 --pipeline-model-parallel-size 2 --save elsewhere"
)


def saved(folder: Path, flags: str = "", *, with_tokenizer: bool = True, changes: dict[str, str] | None = None) -> Path:
    """A checkpoint as `checkpoint.save` leaves it, without weights."""
    config, _ = arguments.parse(f"{FLAGS} {flags}".split(), [])
    tokenizer = build_tokenizer(config.data)
    recipe = RunRecipe.of(config, Layout.of(config, 2), tokenizer, {}, {}).with_changes({"widen": changes or {}})
    files = {checkpoint_folder.RECIPE: recipe.to_json().encode()}
    if with_tokenizer:
        files |= {f"{checkpoint_folder.TOKENIZER}/{name}": content for name, content in tokenizer.files.items()}
    complete = folder / checkpoint_folder.folder_name(10)
    for name, content in files.items():
        (complete / name).parent.mkdir(parents=True, exist_ok=True)
        (complete / name).write_bytes(content)
    sizes = {name: len(content) for name, content in files.items()}
    (complete / checkpoint_folder.COMPLETE).write_text(json.dumps({"files": sizes}))
    (folder / checkpoint_folder.LATEST).write_text("10")
    return complete


def huggingface(folder: Path) -> str:
    """Flags of a tokenizer whose files lie in `folder`."""
    folder.mkdir()
    shutil.copy(EXAMPLES / "tokenizer.json", folder)
    special = {"eos_token": "a", "bos_token": {"content": "b"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {folder}"


def test_it_has_the_runs_model_and_none_of_its_layout(tmp_path: Path) -> None:
    saved(tmp_path)

    found = SavedModel.find(tmp_path, ParallelConfig(tensor_model_parallel_size=4))

    assert (found.config.model.rotary_base, found.config.model.num_layers) == (500_000, 4)
    assert (found.max_positions, found.tokenizer.vocab_size) == (32, 257)
    assert found.config.parallel == ParallelConfig(tensor_model_parallel_size=4)
    assert (found.config.training.recompute_granularity, found.config.checkpoint.save) == (None, None)
    layout = found.layout(8)
    assert (layout.tensor, layout.pipeline, layout.data) == (4, 1, 2)


def test_its_tokenizer_is_the_runs_after_the_files_are_gone(tmp_path: Path) -> None:
    files = tmp_path / "files"
    saved(tmp_path / "run", huggingface(files))
    shutil.rmtree(files)

    tokenizer = SavedModel.find(tmp_path / "run", ParallelConfig()).tokenizer

    assert tokenizer.detokenize(tokenizer.tokenize("The king")) == "The king"
    assert tokenizer.eod == tokenizer.tokenize("a")[0]
    assert tokenizer.bos == tokenizer.tokenize("b")[0]


def test_a_gpt2_vocabulary_is_kept_too(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(EXAMPLES / name, tmp_path)
    flags = f"--vocab-file {tmp_path}/vocab.json --merge-file {tmp_path}/merges.txt"
    saved(tmp_path / "run", f"--tokenizer-type GPT2BPETokenizer {flags}")
    (tmp_path / "vocab.json").unlink()

    assert SavedModel.find(tmp_path / "run", ParallelConfig()).tokenizer.vocab_size == 2048


def test_one_checkpoint_of_a_run_can_be_named(tmp_path: Path) -> None:
    complete = saved(tmp_path)

    assert SavedModel.find(complete, ParallelConfig()).folder == complete


def test_a_tokenizer_that_is_not_kept_must_be_given_and_be_the_same(tmp_path: Path) -> None:
    files = tmp_path / "files"
    saved(tmp_path / "run", huggingface(files), with_tokenizer=False)
    moved = tmp_path / "moved"
    files.rename(moved)

    given = SavedModel.find(tmp_path / "run", ParallelConfig(), {"tokenizer_model": str(moved)})

    assert given.tokenizer.vocab_size == 2048
    with pytest.raises(ConfigError, match=r"does not hold its tokenizer.* give --tokenizer-model"):
        SavedModel.find(tmp_path / "run", ParallelConfig())
    content = json.loads((moved / "tokenizer.json").read_text())
    (moved / "tokenizer.json").write_text(json.dumps(content, indent=1))
    with pytest.raises(DataError, match="another tokenizer than this"):
        SavedModel.find(tmp_path / "run", ParallelConfig(), {"tokenizer_model": str(moved)})


def break_recipe(folder: Path) -> None:
    (folder / checkpoint_folder.RECIPE).write_text(
        "{}" + " " * ((folder / checkpoint_folder.RECIPE).stat().st_size - 2)
    )


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (lambda folder: shutil.rmtree(folder.parent), NotFoundError, "there is no such folder"),
        (lambda folder: (folder.parent / checkpoint_folder.LATEST).unlink(), NotFoundError, "holds no checkpoint"),
        (lambda folder: (folder / checkpoint_folder.COMPLETE).unlink(), DataError, "no complete checkpoint"),
        (break_recipe, DataError, "recipe.json: no recipe of a run"),
    ],
)
def test_what_is_missing_or_broken_is_named(
    damage: object, error: type[MegatronAppError], says: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    assert callable(damage)
    damage(folder)

    with pytest.raises(error, match=says):
        SavedModel.find(tmp_path / "run", ParallelConfig())


def test_a_model_that_a_plugin_changed_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, changes={"hidden_size": "128"})

    with pytest.raises(UsageError, match="plug-in widen, which changed the model"):
        SavedModel.find(tmp_path, ParallelConfig())


def test_a_bert_writes_no_text_and_without_its_second_head_is_not_converted(tmp_path: Path) -> None:
    vocabulary = f"--tokenizer-type BertWordPieceLowerCase --vocab-file {EXAMPLES / 'vocab.txt'} --data-path data"
    saved(tmp_path, f"--model-type bert --bert-no-binary-head --rotary-base 10000 {vocabulary}")

    with pytest.raises(UsageError, match="is of a bert, and text is generated by a GPT alone"):
        SavedModel.find(tmp_path, ParallelConfig())
    with pytest.raises(UsageError, match="no family of Hugging Face has this model"):
        Checkpoint.read(Options(source=tmp_path, target=tmp_path / "out"))


def test_experts_over_tensor_ranks_are_built_for_sequence_parallelism(tmp_path: Path) -> None:
    saved(tmp_path, "--num-experts 4 --disable-bias-linear")

    found = SavedModel.find(tmp_path, ParallelConfig(tensor_model_parallel_size=2))

    assert found.layout(2).tensor == 2
    assert found.config.parallel.sequence_parallel
