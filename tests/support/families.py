"""Tiny models of each family over the example corpus, as tests train them."""

from __future__ import annotations

from pathlib import Path

from megatronapp.trainer.data.preprocess import main as preprocess

DATA = Path(__file__).parents[2] / "examples" / "data"
VOCABULARY = f"--vocab-file {DATA / 'vocab.txt'} --tokenizer-type BertWordPieceLowerCase"
TINY = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 "
    "--global-batch-size 8 --lr 1e-3 --lr-decay-style constant --num-workers 0 --log-interval 1 --eval-iters 0 "
    f"--hidden-dropout 0 --attention-dropout 0 --split 90,10 {VOCABULARY}"
)

OWN = {"bert": "", "t5": "--vocab-extra-ids 20 --decoder-seq-length 16 --decoder-num-layers 2"}


def sentences(folder: Path) -> str:
    """The corpus preprocessed into sentences; what --data-path takes."""
    prefix = folder / "corpus"
    flags = ["--split-sentences", *VOCABULARY.split()]
    preprocess([f"--input={DATA / 'corpus.jsonl'}", f"--output-prefix={prefix}", *flags])
    return f"{prefix}_text_sentence"


def flags_of(family: str, data: str) -> str:
    """Of a tiny model of this family; the number of steps is left to the caller."""
    return f"{TINY} --data-path {data} --model-type {family} {OWN[family]}"
