"""What is done with a converted model: training under any layout, and text."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from structlog.testing import capture_logs

from megatronapp.core.generation import GenerationRequest, RowFinished
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.convert import core_to_hf, hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.data.preprocess import main as preprocess
from tests.integration.trainer.generate.models import GREEDY, answers
from tests.support.built import built
from tests.support.families import DATA
from tests.support.forked import run_forked
from tests.support.hugging_face import CONFIGS, LLAMA, random_tensors, write_model, write_t5_pieces
from tests.support.marks import some
from tests.support.training import train

RUN = (
    "--use-checkpoint-args --seq-length 16 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --mock-data "
    "--num-workers 0 --log-interval 1 --eval-iters 0 --lr-decay-style constant"
)
ROWS = 34
NAMES = ["llama", "llama-tied", "llama-biased", "mistral", "mistral-window", "qwen2", "qwen2-window", "qwen3", "gpt2"]
SHORTER = {"sliding_window": 4}
"""Than the sequences."""
WITHOUT_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "dropout_rate": 0.0}
OF_T5 = "--tensor-model-parallel-size 2 --use-distributed-optimizer"
TWO_BY_TWO = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"


def checkpoint(folder: Path, name: str) -> Path:
    """Of rows that two ranks share evenly, and without dropout, which no two layouts draw alike."""
    window = SHORTER if name.endswith("-window") else {}
    config = {**CONFIGS[name], **window, "vocab_size": ROWS, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    source = write_model(folder / "model", config)
    hf_to_core.convert(Options(source=source, target=folder / "core"))
    return folder / "core"


def losses(core: Path, flags: str, ranks: int) -> list[float]:
    return run_forked(ranks, train, f"{RUN} --load {core} {flags}")[-1].losses


def events(flags: str) -> list[str]:
    """For a rank: what it logs."""
    with capture_logs() as logs:
        train(flags)
    return [entry["event"] for entry in logs]


@pytest.mark.long
@pytest.mark.parametrize("name", some(NAMES, lambda name: name == "qwen2-window"))
def test_a_converted_model_trains_alike_on_two_by_two_ranks_and_on_one(name: str, tmp_path: Path) -> None:
    core = checkpoint(tmp_path, name)

    on_one = losses(core, "--train-iters 5", 1)
    on_four = losses(core, f"--train-iters 5 {TWO_BY_TWO}", 4)

    assert len(on_one) == 5
    assert on_one[0] == pytest.approx(math.log(ROWS), abs=0.3)
    assert on_four == pytest.approx(on_one, rel=1e-5)


def masked_words(folder: Path, name: str) -> tuple[Path, str]:
    """A converted BERT or T5 without dropout, and flags of its data."""
    source = write_model(folder / "model", {**CONFIGS[name], **WITHOUT_DROPOUT, "vocab_size": 2176})
    if name == "megatron-bert":
        shutil.copyfile(DATA / "vocab.txt", source / "vocab.txt")
        tokens = f"--tokenizer-type BertWordPieceCase --vocab-file {source / 'vocab.txt'}"
    else:
        texts = [json.loads(line)["text"] for line in (DATA / "corpus.jsonl").open()]
        write_t5_pieces(source, texts=texts, tokens=400, extra_ids=20)
        tokens = f"--tokenizer-type SentencePieceTokenizer --tokenizer-model {source / 'spiece.model'}"
    hf_to_core.convert(Options(source=source, target=folder / "core"))
    prefix = folder / "corpus"
    preprocess([f"--input={DATA / 'corpus.jsonl'}", f"--output-prefix={prefix}", "--split-sentences", *tokens.split()])
    return folder / "core", f"--data-path {prefix}_text_sentence --split 90,10"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "layout", "ranks"),
    [("megatron-bert", TWO_BY_TWO, 4), ("t5", OF_T5, 4), ("mt5", OF_T5, 4)],
)
def test_a_converted_model_of_masked_words_trains_alike_on_four_ranks_and_on_one(
    name: str, layout: str, ranks: int, tmp_path: Path
) -> None:
    core, data = masked_words(tmp_path, name)
    run = f"{RUN.replace('--mock-data ', '')} {data} --train-iters 5"

    on_one, on_four = (
        run_forked(world, train, f"{run} --load {core} {flags}")[-1].losses
        for world, flags in ((1, ""), (ranks, f"{layout} --save {tmp_path / 'trained'}"))
    )
    core_to_hf.convert(Options(source=tmp_path / "trained", target=tmp_path / "back"))

    assert len(on_one) == 5
    assert on_one[0] == pytest.approx(math.log(2176), abs=1.5)
    assert on_four == pytest.approx(on_one, rel=1e-5)
    found, before = (load_file(str(tmp_path / each / "model.safetensors")) for each in ("back", "model"))
    assert {key: tensor.shape for key, tensor in found.items()} == {key: each.shape for key, each in before.items()}
    assert not any(found[key].equal(before[key]) for key in before)


def shares(core: Path) -> list[tuple[str, tuple[int, ...]]]:
    """For a rank: its part of each weight."""
    with built(core, ParallelConfig(tensor_model_parallel_size=2)) as [chunk]:
        return [(name, tuple(each.shape)) for name, each in chunk.named_parameters()]


@pytest.mark.long
@pytest.mark.parametrize("name", ["megatron-bert-untied", "t5"])
def test_a_vocabulary_that_ranks_do_not_share_evenly_is_filled_up(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", CONFIGS[name])
    hf_to_core.convert(Options(source=source, target=tmp_path / "core"))

    found = dict(run_forked(2, shares, tmp_path / "core")[1])

    assert found["embedding.word_embeddings.weight"] == (17, 16)


def test_a_converted_model_is_trained_from_step_one_and_goes_back(tmp_path: Path) -> None:
    core, trained, back = checkpoint(tmp_path, "llama"), tmp_path / "trained", tmp_path / "back"

    [logged] = run_forked(1, events, f"{RUN} --load {core} --train-iters 2 --save {trained}")
    core_to_hf.convert(Options(source=trained, target=back))

    assert "checkpoint_of_weights_alone" in logged
    found, before = load_file(str(back / "model.safetensors")), random_tensors({**LLAMA, "vocab_size": ROWS})
    assert {name: tensor.shape for name, tensor in found.items()} == {name: t.shape for name, t in before.items()}
    assert not any(found[name].equal(before[name]) for name in before)


def test_a_converted_model_writes_text_alike_on_any_layout(tmp_path: Path) -> None:
    core = checkpoint(tmp_path, "llama-tied")
    request = GenerationRequest(prompts=("hello", "ab"), max_new_tokens=4, sampling=GREEDY)

    alone = answers(core, [request])[0]
    split = answers(core, [request], 2, tensor_model_parallel_size=2)[0]

    texts = [[event.text for event in each if isinstance(event, RowFinished)] for each in (alone, split)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2
