"""The demo's training data: the examples' text, tokenized once into the user's data folder."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

from megatronapp.core.errors import DataError
from megatronapp.trainer.data.preprocess import main as preprocess


def prepare(examples: Path, folder: Path) -> Path:
    """Make corpus_text_document.{bin,idx} and tokenizer.json in `folder`, unless they are there; returns it."""
    source, tokenizer = examples / "data" / "corpus.jsonl", folder / "tokenizer.json"
    if (folder / "corpus_text_document.idx").exists() and tokenizer.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(examples / "data" / "tokenizer.json", tokenizer)
    flags = ["--input", source, "--output-prefix", folder / "corpus", "--append-eod"]
    flags += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = preprocess([str(flag) for flag in flags])
    if status:
        raise DataError(f"the demo's text could not be tokenized: {output.getvalue().strip()}")
    return folder
